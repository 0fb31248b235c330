//! Sends a step: issues the operation for the weights at the beginning, and the operations of the
//! buckets in the order of the layout. Also makes the ballot of this rank.

use super::ballot::{Ballot, BallotShape};
use super::bucket_callback::CallbackBuckets;
use super::bucket_task::BucketContext;
use super::operation::{self, fail, new_work};
use super::options::{DividePolicy, MissingPolicy};
use super::reducer_state::{Reducer, ReducerState};
use super::step::{GradMark, ReducerStep};
use super::weights::{ReduceFactor, WeightsTask};
use crate::api::group::process_group::Group;
use crate::api::work::handle::Work;
use crate::base::error::{Error, Result};
use crate::kernel;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// Sends the operations of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepSender<'s> {
    pub(super) reducer: &'s Reducer,
    pub(super) state: &'s ReducerState,
    pub(super) group: &'s Arc<Group>,
}

impl StepSender<'_> {
    /// Exchanges the weights of a step, if its buckets need them.
    pub(super) fn send_weights(&self, step: &mut ReducerStep) {
        let options = &self.reducer.options;
        if !options.exchanges_weights() || step.sums.is_some() || step.failure.is_some() {
            return;
        }
        let work = new_work(self.group);
        let task = WeightsTask::new(self.group, step.weights(), options.is_uneven);
        let sums = task.sums();
        match operation::enqueue(self.group, self.reducer.call_options(), &work, task) {
            Ok(()) => {
                step.sums = Some(sums);
                step.works.push(work);
            }
            Err(error) => step.failure = Some(fail(self.group, error)),
        }
    }

    /// Sends the buckets whose gradients are all ready, in the order of the layout.
    pub(super) fn send_full_buckets(&self, step: &mut ReducerStep) {
        while step.has_full_bucket() {
            if let Err(error) = self.send_bucket(step) {
                step.failure = Some(fail(self.group, error));
            }
        }
    }

    fn send_bucket(&self, step: &mut ReducerStep) -> Result<()> {
        let Self { reducer, state, group } = *self;
        let bucket = &state.memory.layout.buckets[step.sent];
        if bucket.is_sparse {
            return self.send_sparse_bucket(step);
        }
        let factor = self.factor(step)?;
        if bucket.device.is_some() {
            return self.send_device_bucket(step, &factor);
        }
        let context = BucketContext {
            group,
            memory: &state.memory,
            params: &reducer.params,
            options: &reducer.options,
            hook: reducer.hook.as_ref(),
            own: state.own.as_ref(),
        };
        let (task, work) = (context.next_task(step, factor)?, new_work(group));
        self.call_back_bucket(step, &work)?;
        operation::enqueue(group, reducer.call_options(), &work, task)?;
        step.times.first_sent.get_or_insert_with(Instant::now);
        step.works.push(work);
        step.sent += 1;
        Ok(())
    }

    fn factor(&self, step: &ReducerStep) -> Result<ReduceFactor> {
        let (options, initial_ranks) = (&self.reducer.options, self.state.initial_ranks);
        let sums = || {
            let none = || Error::internal("the step has no weights");
            step.sums.as_ref().map(Arc::clone).ok_or_else(none)
        };
        Ok(match options.divide {
            DividePolicy::None => ReduceFactor::Sum,
            DividePolicy::Weighted => ReduceFactor::ByWeight(sums()?, step.weights().weight),
            DividePolicy::World if options.is_uneven => ReduceFactor::ByActive(sums()?),
            DividePolicy::Initial if options.is_uneven || self.group.size() != initial_ranks => {
                ReduceFactor::Scale(kernel::with_default_float_mode(|| 1.0 / initial_ranks as f64))
            }
            DividePolicy::World | DividePolicy::Initial => ReduceFactor::Average,
        })
    }

    /// If steps cannot be retried, schedules the caller's function for the next bucket. The
    /// function is called when `work` ends without error.
    pub(super) fn call_back_bucket(&self, step: &ReducerStep, work: &Work) -> Result<()> {
        self.call_back(step, work, step.sent..step.sent + 1, None)
    }

    /// If steps can be retried, schedules the caller's function for all buckets of the step. The
    /// function is called when `work` ends without error and no rank has voted against the step.
    pub(super) fn call_back_all(&self, step: &ReducerStep, work: &Work) -> Result<()> {
        let all = 0..self.state.memory.layout.buckets.len();
        self.call_back(step, work, all, Some(Arc::clone(&step.votes)))
    }

    fn call_back(
        &self,
        step: &ReducerStep,
        work: &Work,
        buckets: Range<usize>,
        votes: Option<Arc<OnceLock<u64>>>,
    ) -> Result<()> {
        let Self { reducer, state, .. } = *self;
        let is_called = reducer.options.is_retryable == votes.is_some() && !step.is_joined;
        let Some(on_bucket) = state.on_bucket.as_ref().filter(|_| is_called) else {
            return Ok(());
        };
        let buckets = CallbackBuckets {
            memory: Arc::clone(&state.memory),
            buckets,
            step: step.number,
            votes,
            is_sharded: reducer.options.is_sharded,
        };
        on_bucket.schedule(&reducer.callbacks, work, buckets)
    }

    /// Sends the remaining buckets, but not the ballot. Returns the parameters whose missing mark
    /// is an error.
    pub(super) fn send_buckets(&self, step: &mut ReducerStep, vote: u64) -> Vec<usize> {
        let missing = self.resolve_rest(step, vote);
        self.send_weights(step);
        if !self.reducer.waits_for_weights(step) {
            step.is_held_back = false;
            self.send_full_buckets(step);
        }
        missing
    }

    /// Decides how unmarked parameters are handled. Returns the parameters whose missing mark is an
    /// error.
    fn resolve_rest(&self, step: &mut ReducerStep, vote: u64) -> Vec<usize> {
        let Self { reducer, state, .. } = *self;
        let open: Vec<usize> = step.unmarked(&reducer.params).collect();
        for param in open {
            // A parameter without a mark is ready if an earlier step without communication used it.
            let is_accumulated = state.used_before[param] && !step.is_joined;
            let mark = if is_accumulated { GradMark::Ready } else { GradMark::Missing };
            step.resolve(&state.memory, param, mark);
        }
        if reducer.options.missing != MissingPolicy::Error || vote != 0 || step.is_joined {
            return Vec::new();
        }
        let is_missing = |&param: &usize| step.marks[param] == GradMark::Missing;
        (0..reducer.params.len()).filter(is_missing).collect()
    }

    /// Returns the ballot of this rank.
    pub(super) fn ballot(&self, step: &ReducerStep, vote: u64) -> Ballot {
        let (rank, has_order) = (self.group.rank(), self.state.wants_order);
        let (ranks, params) = (self.group.size(), self.reducer.params.len());
        let mut ballot = Ballot::new(BallotShape { ranks, params, has_order });
        ballot.vote(rank, vote);
        let used = step.marks.iter().enumerate().filter(|&(_, &mark)| mark == GradMark::Ready);
        used.for_each(|(param, _)| ballot.add_used(param));
        if rank == 0 && !step.is_joined {
            ballot.set_order(&step.whole_order(&self.reducer.params));
        }
        ballot
    }
}
