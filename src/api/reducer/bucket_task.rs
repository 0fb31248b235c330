//! The operation that reduces a bucket in host memory: it collects the gradients, reduces them, and
//! delivers the results.
//!
//! The memory of the gradients determines the copies:
//!
//! * Gradients in slots (memory of the reducer) are reduced in place, or into separate results if
//!   steps can be retried.
//! * A single gradient in the caller's memory is reduced in place.
//! * Several gradients in the caller's memory are copied to scratch memory (collected) and reduced
//!   there. The results are copied back (delivered).

use super::hook::{Hook, HookBucket};
use super::memory::{GradBlock, GradMemory};
use super::operation::{OperationTurn, ReducerOperation, fail};
use super::options::ReducerOptions;
use super::own_grads::OwnGrads;
use super::param::Param;
use super::step::{GradMark, ReducerStep};
use super::step_log::{DeferredBytes, DeferredCondition, DeferredCopy, StepLog};
use super::weights::ReduceFactor;
use crate::api::collective::call::Call;
use crate::api::group::process_group::Group;
use crate::base::buffer::{Dst, Src};
use crate::base::error::{Error, Result};
use crate::base::label::Label;
use crate::transport::Descriptor;
use std::sync::Arc;
use std::time::Instant;

/// The preparation of a gradient before its bucket is reduced.
#[derive(Clone, Copy, Debug)]
enum GradCollection {
    /// The gradient is copied into the memory of the bucket.
    Copy { from: Src<'static>, to: Dst<'static> },
    /// This rank contributes zeros.
    Zero(Dst<'static>),
    /// This rank contributes zeros, which overwrite the gradient. If no rank used the parameter,
    /// the gradient is restored at the end of the step.
    ZeroUnlessUnused { param: usize, slot: Dst<'static>, result: Option<Dst<'static>> },
}

/// The delivery of a reduced gradient.
#[derive(Clone, Copy, Debug)]
enum GradDelivery {
    /// The gradient is copied to the caller's memory.
    Now { from: Src<'static>, to: Dst<'static> },
    /// The gradient is copied after the ranks have agreed on the step: always, or only if a rank
    /// used the parameter.
    AtCommit { param: usize, when: DeferredCondition, from: Src<'static>, to: Dst<'static> },
    /// The gradient is copied after the ranks have agreed on the step, if a rank used the
    /// parameter. Until then a copy is in separate memory, because other buckets use the scratch
    /// memory.
    HeldAside { param: usize, from: Src<'static>, to: Dst<'static> },
}

/// The state that the operations of a step need.
#[derive(Clone, Copy, Debug)]
pub(super) struct BucketContext<'c> {
    pub(super) group: &'c Group,
    pub(super) memory: &'c Arc<GradMemory>,
    pub(super) params: &'c [Param],
    pub(super) options: &'c ReducerOptions,
    pub(super) hook: Option<&'c Arc<Hook>>,
    /// The memory for this rank's part of the results, if buckets are scattered over the ranks.
    pub(super) own: Option<&'c Arc<OwnGrads>>,
}

/// The operation that reduces a bucket.
#[derive(Debug)]
pub(super) struct BucketTask {
    index: usize,
    step: u64,
    send: Dst<'static>,
    recv: Dst<'static>,
    collect: Vec<GradCollection>,
    deliver: Vec<GradDelivery>,
    factor: ReduceFactor,
    hook: Option<Arc<Hook>>,
    /// The memory for this rank's part of the result, if the bucket is scattered.
    own: Option<Arc<OwnGrads>>,
    /// The block with the gradient slots, if the buckets share a pool of blocks. `run` gives it
    /// back.
    pooled: Option<Arc<GradBlock>>,
    memory: Arc<GradMemory>,
    log: Arc<StepLog>,
    /// Keeps the collection memory allocated until the operation has ended.
    _scratch: Option<Arc<GradBlock>>,
}

impl BucketContext<'_> {
    /// Creates the operation that reduces the next bucket of a step.
    ///
    /// # Errors
    /// `OutOfMemory` and `System`, if there is no memory to collect gradients.
    pub(super) fn next_task(&self, step: &ReducerStep, factor: ReduceFactor) -> Result<BucketTask> {
        let index = step.sent;
        let mut task = BucketTask {
            index,
            step: step.number,
            send: Dst::empty(),
            recv: Dst::empty(),
            collect: Vec::new(),
            deliver: Vec::new(),
            factor,
            hook: self.hook.map(Arc::clone),
            own: self.own.map(Arc::clone),
            pooled: None,
            memory: Arc::clone(self.memory),
            log: Arc::clone(&step.log),
            _scratch: None,
        };
        match (self.own, self.memory.bucket_slots(index)) {
            (Some(own), slots) => self.scatter(&mut task, step, own.recv(index), slots)?,
            (None, Some(slots)) => self.reduce_slots(&mut task, step, slots),
            (None, None) => self.reduce_owned(&mut task, step)?,
        }
        Ok(task)
    }

    /// Prepares a bucket of gradient slots, which are reduced in place or into separate results.
    fn reduce_slots(&self, task: &mut BucketTask, step: &ReducerStep, slots: Dst<'static>) {
        let bucket = &self.memory.layout.buckets[task.index];
        let result = self.memory.bucket_result(task.index);
        (task.send, task.recv) = (slots, result.unwrap_or(slots));
        for (position, &param) in bucket.params.iter().enumerate() {
            let (mark, slot) = (step.marks[param], bucket.part(slots, position));
            if mark == GradMark::Ready {
                continue;
            }
            task.collect.push(if !step.is_joined && mark.keeps_unused(self.options.missing) {
                let result = result.map(|result| bucket.part(result, position));
                GradCollection::ZeroUnlessUnused { param, slot, result }
            } else {
                GradCollection::Zero(slot)
            });
        }
    }

    /// Prepares a bucket of the caller's gradients.
    fn reduce_owned(&self, task: &mut BucketTask, step: &ReducerStep) -> Result<()> {
        let bucket = &self.memory.layout.buckets[task.index];
        let result = self.memory.bucket_result(task.index);
        let is_single = self.collect_owned(task, step, result)?;
        task.recv = result.unwrap_or(task.send);
        let is_in_place = is_single && result.is_none();
        if step.is_joined || is_in_place {
            return Ok(());
        }
        for (position, &param) in bucket.params.iter().enumerate() {
            let (from, to) = (bucket.part(task.recv, position).as_src(), self.grad(param));
            let mark = step.marks[param];
            let only_if_used = mark != GradMark::Ready && mark.keeps_unused(self.options.missing);
            task.deliver.push(match (result, only_if_used) {
                (Some(_), _) => {
                    let when = DeferredCondition::used_or_always(only_if_used);
                    GradDelivery::AtCommit { param, when, from, to }
                }
                (None, true) => GradDelivery::HeldAside { param, from, to },
                (None, false) => GradDelivery::Now { from, to },
            });
        }
        Ok(())
    }

    /// Prepares a scattered bucket: this rank's part of the sum goes to separate memory, and the
    /// gradients do not change.
    fn scatter(
        &self,
        task: &mut BucketTask,
        step: &ReducerStep,
        recv: Dst<'static>,
        slots: Option<Dst<'static>>,
    ) -> Result<()> {
        let bucket = &self.memory.layout.buckets[task.index];
        task.recv = recv;
        if bucket.is_owned {
            return self.collect_owned(task, step, None).map(drop);
        }
        task.send = match (slots, &self.memory.pool) {
            (Some(slots), _) => slots,
            (None, Some(pool)) => {
                let block = pool.assign(self.group, task.index, true)?;
                pool.send(task.index);
                let slots = block.as_ref().map_or(Dst::empty(), |block| block.view());
                task.pooled = block;
                slots.slice(0, bucket.bytes)
            }
            (None, None) => return Err(Error::internal("a bucket has no memory")),
        };
        for (position, &param) in bucket.params.iter().enumerate() {
            if step.marks[param] != GradMark::Ready {
                task.collect.push(GradCollection::Zero(bucket.part(task.send, position)));
            }
        }
        Ok(())
    }

    /// Collects the caller's gradients in `room`, or in scratch memory. Returns true for a single
    /// gradient, which is not collected.
    fn collect_owned(
        &self,
        task: &mut BucketTask,
        step: &ReducerStep,
        room: Option<Dst<'static>>,
    ) -> Result<bool> {
        let bucket = &self.memory.layout.buckets[task.index];
        if bucket.params.len() == 1 && step.marks[bucket.params[0]] == GradMark::Ready {
            task.send = self.grad(bucket.params[0]);
            return Ok(true);
        }
        task.send = match room {
            Some(room) => room,
            None => {
                let scratch = self.memory.scratch(self.group, bucket.bytes)?;
                let room = scratch.view().slice(0, bucket.bytes);
                task._scratch = Some(scratch);
                room
            }
        };
        for (position, &param) in bucket.params.iter().enumerate() {
            let to = bucket.part(task.send, position);
            task.collect.push(match step.marks[param] {
                GradMark::Ready => GradCollection::Copy { from: self.grad(param).as_src(), to },
                _ => GradCollection::Zero(to),
            });
        }
        Ok(false)
    }

    fn grad(&self, param: usize) -> Dst<'static> {
        self.params[param].grad.unwrap_or(Dst::empty())
    }
}

impl BucketTask {
    fn call(&self) -> Call<'static> {
        let (op, dtype) = (self.factor.op(), self.memory.layout.buckets[self.index].dtype);
        match &self.own {
            None => Call::all_reduce(self.send.as_src(), self.recv, dtype, op),
            Some(own) => {
                let sends = own.sends(&self.memory.layout, self.index, self.send);
                Call::reduce_scatter_v(sends, self.recv, dtype, op)
            }
        }
    }

    /// Reduces the bucket; returns the number of bytes sent.
    fn reduce(&self, mut turn: OperationTurn<'_>) -> Result<u64> {
        let Some(hook) = &self.hook else {
            turn.run_scaled(&self.call(), self.factor.value()?)?;
            return Ok(self.send.len() as u64);
        };
        let bucket = HookBucket {
            spec: &self.memory.layout.buckets[self.index],
            index: self.index,
            n_buckets: self.memory.layout.buckets.len(),
            step: self.step,
            send: self.send,
            recv: self.recv,
            factor: self.factor.of_sum(turn.group.size())?,
        };
        let outcome = hook.reduce(&bucket, &mut turn)?;
        self.log.lock().hook_updates.extend(outcome.updates);
        Ok(outcome.bytes_sent)
    }

    /// Copies or zeroes the gradients in the memory of the bucket.
    fn collect(&self) {
        let mut copied = 0;
        for collect in &self.collect {
            match *collect {
                GradCollection::Copy { from, to } => {
                    to.copy_from(from);
                    copied += to.len();
                }
                GradCollection::Zero(to) => to.fill_zero(),
                GradCollection::ZeroUnlessUnused { param, slot, result } => {
                    let bytes = copy_aside(slot.as_src());
                    let mut notes = self.log.lock();
                    for to in [Some(slot), result].into_iter().flatten() {
                        let bytes = DeferredBytes::Owned(Arc::clone(&bytes));
                        let when = DeferredCondition::Unused;
                        notes.deferred.push(DeferredCopy { param, when, bytes, to });
                    }
                    drop(notes);
                    copied += slot.len();
                    slot.fill_zero();
                }
            }
        }
        self.log.lock().bytes_copied += copied as u64;
    }

    /// Delivers the results to the caller's memory.
    fn deliver(&self) {
        let mut copied = 0;
        for deliver in &self.deliver {
            let deferred = match *deliver {
                GradDelivery::Now { from, to } => {
                    to.copy_from(from);
                    copied += to.len();
                    continue;
                }
                GradDelivery::AtCommit { param, when, from, to } => {
                    DeferredCopy { param, when, bytes: DeferredBytes::InPlace(from), to }
                }
                GradDelivery::HeldAside { param, from, to } => {
                    copied += from.len();
                    let bytes = DeferredBytes::Owned(copy_aside(from));
                    DeferredCopy { param, when: DeferredCondition::Used, bytes, to }
                }
            };
            self.log.lock().deferred.push(deferred);
        }
        self.log.lock().bytes_copied += copied as u64;
    }
}

/// Returns a copy of bytes.
fn copy_aside(from: Src<'static>) -> Arc<[u8]> {
    let mut bytes = vec![0; from.len()];
    Dst::from(bytes.as_mut_slice()).copy_from(from);
    bytes.into()
}

impl ReducerOperation for BucketTask {
    fn collective_count(&self) -> u64 {
        self.hook.as_ref().map_or(1, |hook| hook.operations())
    }

    fn descriptor(&self, sequence: u64, label: Label) -> Descriptor {
        self.call().descriptor(sequence, label)
    }

    fn title(&self, descriptor: &Descriptor) -> String {
        format!("bucket {} of step {} ({descriptor})", self.index, self.step)
    }

    fn run(&mut self, turn: OperationTurn<'_>) -> Result<()> {
        let begun = Instant::now();
        self.collect();
        let group = turn.group;
        // After an error of a hook, the group has not failed yet. `fail` makes the group fail,
        // because the ranks must not agree on the step.
        let sent = self.reduce(turn).map_err(|error| fail(group, error))?;
        self.deliver();
        if let (Some(pool), Some(block)) = (&self.memory.pool, self.pooled.take()) {
            pool.give_back(block);
        }
        let mut notes = self.log.lock();
        notes.bytes_reduced += self.send.len() as u64;
        notes.bytes_sent += sent;
        notes.communication += begun.elapsed();
        notes.last_end = Some(Instant::now());
        Ok(())
    }
}
