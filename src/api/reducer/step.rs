//! One synchronised step: which gradients are ready, which buckets were sent, and how each bucket
//! is reduced.
//!
//! This module does not depend on when steps begin and end, or on the votes.

use super::device::GradStream;
use super::memory::GradMemory;
use super::options::ReducerOptions;
use super::param::Param;
use super::shard::OwnGrads;
use super::sparse::SparseInput;
use super::task::{BucketJob, GradCollection, GradDelivery, StepLog};
use super::weights::{ReduceFactor, StepSums};
use crate::api::group::process_group::Group;
use crate::api::work::handle::Work;
use crate::base::buffer::Dst;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// The state of a gradient in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GradMark {
    /// The gradient was not marked.
    Open,
    /// The gradient is ready.
    Ready,
    /// The caller marked the parameter as not used on this rank.
    Unused,
    /// The caller did not mark the gradient before the end.
    Missing,
}

/// The times of events in a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepTimes {
    pub(super) begun: Instant,
    pub(super) first_ready: Option<Instant>,
    pub(super) last_ready: Option<Instant>,
    pub(super) first_sent: Option<Instant>,
    pub(super) ended: Option<Instant>,
}

/// A synchronised step.
#[derive(Debug)]
pub(super) struct ReducerStep {
    pub(super) number: u64,
    pub(super) weight: f64,
    /// Whether this rank has no data and contributes zeros.
    pub(super) is_joined: bool,
    pub(super) marks: Vec<GradMark>,
    /// How often each parameter was marked.
    pub(super) counts: Vec<u32>,
    /// The number of gradients that are not ready, for each bucket.
    left: Vec<usize>,
    /// Whether no bucket is sent before the end, because it is not known how often parameters are
    /// marked.
    pub(super) is_held_back: bool,
    /// The number of buckets that were sent.
    pub(super) sent: usize,
    pub(super) works: Vec<Arc<Work>>,
    pub(super) sums: Option<Arc<StepSums>>,
    pub(super) notes: Arc<StepLog>,
    /// The rows of sparse gradients, by parameter.
    pub(super) sparse: HashMap<usize, SparseInput>,
    /// The order in which gradients became ready.
    pub(super) order: Vec<usize>,
    /// The reason why buckets can no longer be sent.
    pub(super) failure: Option<Error>,
    /// The votes of all ranks, after they have agreed.
    pub(super) votes: Arc<OnceLock<u64>>,
    pub(super) times: StepTimes,
}

impl ReducerStep {
    pub(super) fn new(number: u64, memory: &GradMemory, weight: f64) -> Self {
        let params = memory.layout.places.len();
        let left = memory.layout.buckets.iter().map(|bucket| bucket.params.len()).collect();
        Self {
            number,
            weight,
            is_joined: false,
            marks: vec![GradMark::Open; params],
            counts: vec![0; params],
            left,
            is_held_back: false,
            sent: 0,
            works: Vec::new(),
            sums: None,
            notes: Arc::default(),
            sparse: HashMap::new(),
            order: Vec::new(),
            failure: None,
            votes: Arc::default(),
            times: StepTimes {
                begun: Instant::now(),
                first_ready: None,
                last_ready: None,
                first_sent: None,
                ended: None,
            },
        }
    }

    /// Records the state of a gradient.
    pub(super) fn resolve(&mut self, memory: &GradMemory, param: usize, mark: GradMark) {
        let Some((bucket, _)) = memory.layout.places[param] else { return };
        self.marks[param] = mark;
        self.left[bucket] -= 1;
        if mark == GradMark::Ready {
            let now = Instant::now();
            self.times.first_ready.get_or_insert(now);
            self.times.last_ready = Some(now);
            self.order.push(param);
        }
    }

    /// Returns whether the next bucket can be sent.
    pub(super) fn has_full_bucket(&self) -> bool {
        self.failure.is_none()
            && !self.is_held_back
            && self.left.get(self.sent).is_some_and(|&left| left == 0)
    }

    /// Returns the parameters with a gradient that were not marked.
    pub(super) fn unmarked<'s>(&'s self, params: &'s [Param]) -> impl Iterator<Item = usize> + 's {
        let is_open =
            |&index: &usize| params[index].is_trained() && self.marks[index] == GradMark::Open;
        (0..params.len()).filter(is_open)
    }

    /// Resets the sent buckets, for a retry with the same gradients.
    ///
    /// # Errors
    /// `Backend` and `Timeout`, from a device.
    pub(super) fn rewind(&mut self, device: Option<&GradStream>, limit: &Deadline) -> Result<()> {
        self.sent = 0;
        self.works.clear();
        self.sums = None;
        self.failure = None;
        let _held = self.notes.lock().undo(device)?;
        device.map_or(Ok(()), |stream| stream.drain(limit))
    }
}

/// The state that the jobs of a step need.
#[derive(Clone, Copy, Debug)]
pub(super) struct JobContext<'c> {
    pub(super) group: &'c Group,
    pub(super) memory: &'c Arc<GradMemory>,
    pub(super) params: &'c [Param],
    pub(super) options: &'c ReducerOptions,
    pub(super) factor: &'c ReduceFactor,
    /// The memory for results, if buckets are scattered.
    pub(super) own: Option<&'c Arc<OwnGrads>>,
}

impl JobContext<'_> {
    /// Creates the job that reduces the next bucket of a step.
    ///
    /// # Errors
    /// `OutOfMemory` and `System`, if there is no memory to collect gradients.
    pub(super) fn next_job(&self, step: &ReducerStep) -> Result<BucketJob> {
        let index = step.sent;
        let mut job = BucketJob {
            index,
            step: step.number,
            dtype: self.memory.layout.buckets[index].dtype,
            send: Dst::empty(),
            recv: Dst::empty(),
            collect: Vec::new(),
            deliver: Vec::new(),
            factor: self.factor.clone(),
            own: self.own.map(Arc::clone),
            pooled: None,
            memory: Arc::clone(self.memory),
            _scratch: None,
        };
        if let Some(own) = self.own {
            self.scatter(&mut job, step, own.recv(index))?;
            return Ok(job);
        }
        match self.memory.bucket_places(index) {
            Some(places) => self.reduce_places(&mut job, step, places),
            None => self.reduce_owned(&mut job, step)?,
        }
        Ok(job)
    }

    /// Prepares a bucket of places, which are reduced in place or into separate results.
    fn reduce_places(&self, job: &mut BucketJob, step: &ReducerStep, places: Dst<'static>) {
        let bucket = &self.memory.layout.buckets[job.index];
        let result = self.memory.bucket_result(job.index);
        (job.send, job.recv) = (places, result.unwrap_or(places));
        for (position, &param) in bucket.params.iter().enumerate() {
            let place = bucket.part(places, position);
            if step.marks[param] == GradMark::Ready {
                continue;
            }
            let keeps = !step.is_joined && self.options.keeps_unused(step.marks[param]);
            job.collect.push(if keeps {
                let result = result.map(|result| bucket.part(result, position));
                GradCollection::ZeroUnlessUnused { param, place, result }
            } else {
                GradCollection::Zero(place)
            });
        }
    }

    /// Prepares a bucket of the caller's gradients. A single gradient is reduced in place, several
    /// gradients are collected.
    fn reduce_owned(&self, job: &mut BucketJob, step: &ReducerStep) -> Result<()> {
        let bucket = &self.memory.layout.buckets[job.index];
        let result = self.memory.bucket_result(job.index);
        let is_single = bucket.params.len() == 1 && step.marks[bucket.params[0]] == GradMark::Ready;
        if is_single {
            let grad = self.grad(bucket.params[0]);
            (job.send, job.recv) = (grad, result.unwrap_or(grad));
        } else {
            let room = match result {
                Some(result) => result,
                None => {
                    let scratch = self.memory.scratch(self.group, bucket.bytes)?;
                    let room = scratch.view().slice(0, bucket.bytes);
                    job._scratch = Some(scratch);
                    room
                }
            };
            (job.send, job.recv) = (room, room);
        }
        for (position, &param) in bucket.params.iter().enumerate() {
            let (grad, at) = (self.grad(param), bucket.part(job.recv, position));
            let mark = step.marks[param];
            if !is_single {
                job.collect.push(match mark {
                    GradMark::Ready => GradCollection::Copy { from: grad.as_src(), to: at },
                    _ => GradCollection::Zero(at),
                });
            }
            let is_in_place = is_single && result.is_none();
            if !step.is_joined && !is_in_place {
                job.deliver.push(self.delivery(param, mark, result.is_some(), (at, grad)));
            }
        }
        Ok(())
    }

    /// Prepares a scattered bucket: this rank's part of the sum goes to separate memory, and the
    /// gradients do not change.
    fn scatter(&self, job: &mut BucketJob, step: &ReducerStep, recv: Dst<'static>) -> Result<()> {
        let bucket = &self.memory.layout.buckets[job.index];
        job.recv = recv;
        if bucket.is_owned {
            return self.collect_owned(job, step);
        }
        job.send = match (&self.memory.pool, self.memory.bucket_places(job.index)) {
            (_, Some(places)) => places,
            (Some(pool), None) => {
                let block = pool.assign(self.group, job.index, true)?;
                pool.send(job.index);
                let places = block.as_ref().map_or(Dst::empty(), |block| block.view());
                job.pooled = block;
                places.slice(0, bucket.bytes)
            }
            (None, None) => return Err(Error::internal("a bucket has no memory")),
        };
        for (position, &param) in bucket.params.iter().enumerate() {
            if step.marks[param] != GradMark::Ready {
                job.collect.push(GradCollection::Zero(bucket.part(job.send, position)));
            }
        }
        Ok(())
    }

    /// Prepares the caller's gradients of a scattered bucket.
    fn collect_owned(&self, job: &mut BucketJob, step: &ReducerStep) -> Result<()> {
        let bucket = &self.memory.layout.buckets[job.index];
        if bucket.params.len() == 1 && step.marks[bucket.params[0]] == GradMark::Ready {
            job.send = self.grad(bucket.params[0]);
            return Ok(());
        }
        let scratch = self.memory.scratch(self.group, bucket.bytes)?;
        job.send = scratch.view().slice(0, bucket.bytes);
        job._scratch = Some(scratch);
        for (position, &param) in bucket.params.iter().enumerate() {
            let to = bucket.part(job.send, position);
            job.collect.push(match step.marks[param] {
                GradMark::Ready => GradCollection::Copy { from: self.grad(param).as_src(), to },
                _ => GradCollection::Zero(to),
            });
        }
        Ok(())
    }

    fn delivery(
        &self,
        param: usize,
        mark: GradMark,
        is_apart: bool,
        (at, grad): (Dst<'static>, Dst<'static>),
    ) -> GradDelivery {
        let (from, to) = (at.as_src(), grad);
        let only_if_used = mark != GradMark::Ready && self.options.keeps_unused(mark);
        match (is_apart, only_if_used) {
            (true, _) => GradDelivery::AtCommit { param, only_if_used, from, to },
            (false, true) => GradDelivery::HeldAside { param, from, to },
            (false, false) => GradDelivery::Now { from, to },
        }
    }

    fn grad(&self, param: usize) -> Dst<'static> {
        self.params[param].grad.unwrap_or(Dst::empty())
    }
}
