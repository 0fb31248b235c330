//! The operations of a step in the queue of the group: the weights at its beginning
//! ([`weights`](super::weights)), the buckets, and the ballot at its end.
//!
//! The operations of a group run one at a time, in the order of issue. Therefore a bucket can use
//! the result of the weights, the buckets can share the memory in which gradients are collected,
//! and the ballot runs after all results are complete.

use super::Reducer;
use super::ballot::Ballot;
use super::device::GradStream;
use super::hook::{Hook, HookBucket, HookTurn, PowerUpdate};
use super::launch::fail;
use super::memory::{GradBlock, GradMemory};
use super::shard::OwnGrads;
use super::sparse::SparseResult;
use super::weights::ReduceFactor;
use crate::api::call::{Call, CallOptions};
use crate::api::group::Group;
use crate::api::issue::OperationTask;
use crate::api::work::Work;
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::{Deadline, LazyDeadline};
use crate::base::dtype::DataType;
use crate::base::error::{Error, Result};
use crate::base::op::ReduceOp;
use crate::base::sync::lock;
use crate::transport::Descriptor;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Runs a collective as the operation of a task.
pub(super) fn run_in_turn(
    group: &Group,
    call: &Call<'_>,
    options: &CallOptions,
    first: Descriptor,
    deadline: &Deadline,
) -> Result<()> {
    let deadline = LazyDeadline::from(*deadline);
    let of = (group.name(), &deadline);
    let operation = call.operation(first, options, of, &group.observer);
    group.carry_out(&operation, options.nan_check)
}

/// The preparation of a gradient before its bucket is reduced.
#[derive(Clone, Copy, Debug)]
pub(super) enum GradCollection {
    /// The gradient is copied into the memory of the bucket.
    Copy { from: Src<'static>, to: Dst<'static> },
    /// This rank contributes zeros.
    Zero(Dst<'static>),
    /// This rank contributes zeros. If no rank used the parameter, its gradient is restored.
    ZeroUnlessUnused { param: usize, place: Dst<'static>, result: Option<Dst<'static>> },
}

/// The delivery of a reduced gradient.
#[derive(Clone, Copy, Debug)]
pub(super) enum GradDelivery {
    /// The gradient is copied to the caller's memory.
    Now { from: Src<'static>, to: Dst<'static> },
    /// The gradient is copied after the ranks have agreed on the step: always, or only if a rank
    /// used the parameter.
    AtCommit { param: usize, only_if_used: bool, from: Src<'static>, to: Dst<'static> },
    /// The gradient is copied if a rank used the parameter. It is kept in separate memory until
    /// then, since other buckets use the shared memory.
    HeldAside { param: usize, from: Src<'static>, to: Dst<'static> },
}

/// A copy that waits for the agreement at the end of the step.
#[derive(Debug)]
pub(super) struct DeferredCopy {
    param: usize,
    when: DeferredCondition,
    bytes: DeferredBytes,
    to: Dst<'static>,
}

/// The condition of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeferredCondition {
    Always,
    Used,
    Unused,
}

/// The source of a deferred copy.
#[derive(Debug)]
pub(super) enum DeferredBytes {
    Owned(Arc<[u8]>),
    InPlace(Src<'static>),
    /// Device memory. The block is held if the bytes were set aside in it.
    OnDevice {
        bytes: Src<'static>,
        _held: Option<Arc<GradBlock>>,
    },
}

impl DeferredCopy {
    /// Creates a copy in device memory. `block` holds the bytes, if they were set aside.
    pub(super) fn on_device(
        (param, when): (usize, DeferredCondition),
        from: Src<'static>,
        block: Option<Arc<GradBlock>>,
        to: Dst<'static>,
    ) -> Self {
        let bytes = DeferredBytes::OnDevice { bytes: from, _held: block };
        Self { param, when, bytes, to }
    }

    fn copy(&self, device: Option<&GradStream>) -> Result<()> {
        match (&self.bytes, device) {
            (DeferredBytes::Owned(bytes), _) => self.to.copy_from(Src::from(&bytes[..])),
            (DeferredBytes::InPlace(bytes), _) => self.to.copy_from(*bytes),
            (DeferredBytes::OnDevice { bytes, .. }, Some(stream)) => {
                stream.copy(*bytes, self.to)?
            }
            (DeferredBytes::OnDevice { .. }, None) => {
                return Err(Error::internal("the reducer has no stream for a device gradient"));
            }
        }
        Ok(())
    }

    /// Copies if the agreement fulfils the condition. Returns the number of copied bytes.
    fn settle(&self, ballot: &Ballot, device: Option<&GradStream>) -> Result<usize> {
        let applies = match self.when {
            DeferredCondition::Always => true,
            DeferredCondition::Used => ballot.is_used(self.param),
            DeferredCondition::Unused => !ballot.is_used(self.param),
        };
        if !applies {
            return Ok(0);
        }
        self.copy(device)?;
        Ok(self.to.len())
    }
}

/// The data that the buckets of a step record for its end.
#[derive(Debug, Default)]
pub(super) struct StepLog {
    notes: Mutex<StepNotes>,
}

/// The contents of a [`StepLog`].
#[derive(Debug, Default)]
pub(super) struct StepNotes {
    pub(super) deferred: Vec<DeferredCopy>,
    /// The reduced rows of sparse gradients, by parameter.
    pub(super) sparse: Vec<(usize, SparseResult)>,
    /// Updates that a hook keeps if the ranks agree on the step.
    pub(super) hook_updates: Vec<PowerUpdate>,
    pub(super) bytes_reduced: u64,
    /// The number of bytes sent, in the encoding of the hook.
    pub(super) bytes_sent: u64,
    pub(super) bytes_copied: u64,
    /// The sum of the durations of all operations.
    pub(super) communication: Duration,
    pub(super) last_end: Option<Instant>,
}

impl StepLog {
    pub(super) fn lock(&self) -> MutexGuard<'_, StepNotes> {
        lock(&self.notes)
    }
}

impl StepNotes {
    /// Makes the copies that waited for the agreement. Returns the device memory that holds their
    /// sources; the caller frees it after the device has completed the copies.
    ///
    /// # Errors
    /// `Backend`, from a device.
    pub(super) fn settle(
        &mut self,
        ballot: &Ballot,
        device: Option<&GradStream>,
    ) -> Result<Vec<DeferredCopy>> {
        let deferred = std::mem::take(&mut self.deferred);
        for copy in &deferred {
            self.bytes_copied += copy.settle(ballot, device)? as u64;
        }
        Ok(deferred)
    }

    /// Restores the gradients that zeros have overwritten, before the step is retried.
    ///
    /// # Errors
    /// `Backend`, from a device.
    pub(super) fn undo(&mut self, device: Option<&GradStream>) -> Result<Vec<DeferredCopy>> {
        self.sparse.clear();
        self.hook_updates.clear();
        let deferred = std::mem::take(&mut self.deferred);
        let overwritten = deferred.iter().filter(|copy| copy.when == DeferredCondition::Unused);
        overwritten.map(|copy| copy.copy(device)).collect::<Result<Vec<()>>>()?;
        Ok(deferred)
    }
}

/// The description of a bucket that is reduced.
#[derive(Debug)]
pub(super) struct BucketJob {
    pub(super) index: usize,
    pub(super) step: u64,
    pub(super) dtype: DataType,
    pub(super) send: Dst<'static>,
    pub(super) recv: Dst<'static>,
    pub(super) collect: Vec<GradCollection>,
    pub(super) deliver: Vec<GradDelivery>,
    pub(super) factor: ReduceFactor,
    /// The memory for this rank's part of the result, if the bucket is scattered.
    pub(super) own: Option<Arc<OwnGrads>>,
    /// The block of the pool with the places.
    pub(super) pooled: Option<Arc<GradBlock>>,
    pub(super) memory: Arc<GradMemory>,
    /// Keeps the collection memory allocated until the operation has ended.
    pub(super) _scratch: Option<Arc<GradBlock>>,
}

impl BucketJob {
    fn call(&self) -> Call<'static> {
        let op = self.factor.op();
        match &self.own {
            None => Call::all_reduce(self.send.as_src(), self.recv, self.dtype, op),
            Some(own) => {
                let sends = own.sends(&self.memory.layout, self.index, self.send);
                Call::reduce_scatter_v(sends, self.recv, self.dtype, op)
            }
        }
    }

    /// Reduces the bucket; returns the number of bytes sent.
    fn reduce(&self, hook: Option<&Hook>, notes: &StepLog, mut turn: HookTurn<'_>) -> Result<u64> {
        let Some(hook) = hook else {
            let HookTurn { group, options, first, deadline, .. } = turn;
            let premul_scale = self.factor.value()?;
            let options = CallOptions { premul_scale, ..options.clone() };
            run_in_turn(group, &self.call(), &options, first, deadline)?;
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
        notes.lock().hook_updates.extend(outcome.updates);
        Ok(outcome.bytes_sent)
    }

    /// Copies or zeroes the gradients in the memory of the bucket.
    fn collect(&self, notes: &StepLog) {
        let mut copied = 0;
        for collect in &self.collect {
            match *collect {
                GradCollection::Copy { from, to } => {
                    to.copy_from(from);
                    copied += to.len();
                }
                GradCollection::Zero(to) => to.fill_zero(),
                GradCollection::ZeroUnlessUnused { param, place, result } => {
                    let bytes = copy_aside(place.as_src());
                    let mut notes = notes.lock();
                    for to in [Some(place), result].into_iter().flatten() {
                        let bytes = DeferredBytes::Owned(Arc::clone(&bytes));
                        let when = DeferredCondition::Unused;
                        notes.deferred.push(DeferredCopy { param, when, bytes, to });
                    }
                    drop(notes);
                    copied += place.len();
                    place.fill_zero();
                }
            }
        }
        notes.lock().bytes_copied += copied as u64;
    }

    /// Delivers the results to the caller's memory.
    fn deliver(&self, notes: &StepLog) {
        let mut copied = 0;
        for deliver in &self.deliver {
            let deferred = match *deliver {
                GradDelivery::Now { from, to } => {
                    to.copy_from(from);
                    copied += to.len();
                    continue;
                }
                GradDelivery::AtCommit { param, only_if_used, from, to } => {
                    let when = if only_if_used {
                        DeferredCondition::Used
                    } else {
                        DeferredCondition::Always
                    };
                    DeferredCopy { param, when, bytes: DeferredBytes::InPlace(from), to }
                }
                GradDelivery::HeldAside { param, from, to } => {
                    copied += from.len();
                    let bytes = DeferredBytes::Owned(copy_aside(from));
                    DeferredCopy { param, when: DeferredCondition::Used, bytes, to }
                }
            };
            notes.lock().deferred.push(deferred);
        }
        notes.lock().bytes_copied += copied as u64;
    }
}

/// Returns a copy of bytes.
fn copy_aside(from: Src<'static>) -> Arc<[u8]> {
    let mut bytes = vec![0; from.len()];
    Dst::from(bytes.as_mut_slice()).copy_from(from);
    bytes.into()
}

/// The task that reduces a bucket.
#[derive(Debug)]
pub(super) struct BucketTask {
    pub(super) job: BucketJob,
    pub(super) hook: Option<Arc<Hook>>,
    pub(super) notes: Arc<StepLog>,
    pub(super) options: CallOptions,
    pub(super) works: [Arc<Work>; 1],
}

impl OperationTask for BucketTask {
    fn works(&self) -> &[Arc<Work>] {
        &self.works
    }

    fn operation_count(&self) -> u64 {
        self.hook.as_ref().map_or(1, |hook| hook.operations())
    }

    fn descriptor(&self, sequence: u64) -> Descriptor {
        self.job.call().descriptor(sequence, self.options.label)
    }

    fn title(&self, descriptor: &Descriptor) -> String {
        format!("bucket {} of step {} ({descriptor})", self.job.index, self.job.step)
    }

    fn run(&mut self, group: &Group, first: Descriptor, deadline: &Deadline) -> Result<()> {
        let begun = Instant::now();
        self.job.collect(&self.notes);
        let turn = HookTurn { group, options: &self.options, first, deadline, used: 0 };
        // The error of a hook does not fail the group by itself, and the ranks must not agree on
        // the step.
        let sent = self.job.reduce(self.hook.as_deref(), &self.notes, turn);
        let sent = sent.map_err(|error| fail(group, error))?;
        self.job.deliver(&self.notes);
        if let (Some(pool), Some(block)) = (&self.job.memory.pool, self.job.pooled.take()) {
            pool.give_back(block);
        }
        let mut notes = self.notes.lock();
        notes.bytes_reduced += self.job.send.len() as u64;
        notes.bytes_sent += sent;
        notes.communication += begun.elapsed();
        notes.last_end = Some(Instant::now());
        Ok(())
    }
}

/// The task that agrees on a step and ends it.
#[derive(Debug)]
pub(super) struct BallotTask {
    pub(super) reducer: Arc<Reducer>,
    pub(super) ballot: Ballot,
    pub(super) step: u64,
    pub(super) options: CallOptions,
    pub(super) works: [Arc<Work>; 1],
}

impl BallotTask {
    /// Returns the call, whose descriptor depends only on the shape.
    fn call(view: Dst<'_>) -> Call<'_> {
        Call::all_reduce(view.as_src(), view, DataType::U8, ReduceOp::BitOr)
    }
}

impl OperationTask for BallotTask {
    fn works(&self) -> &[Arc<Work>] {
        &self.works
    }

    fn descriptor(&self, sequence: u64) -> Descriptor {
        let mut bytes = self.ballot.bytes().to_vec();
        Self::call(Dst::from(bytes.as_mut_slice())).descriptor(sequence, self.options.label)
    }

    fn title(&self, descriptor: &Descriptor) -> String {
        format!("the end of step {} ({descriptor})", self.step)
    }

    fn run(&mut self, group: &Group, first: Descriptor, deadline: &Deadline) -> Result<()> {
        let view = Dst::from(self.ballot.bytes_mut());
        run_in_turn(group, &Self::call(view), &self.options, first, deadline)?;
        self.reducer.conclude(group, &self.ballot)
    }
}
