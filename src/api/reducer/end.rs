//! The end of a step: unmarked parameters, the agreement of all ranks, and its consequences.

use super::ballot::{Ballot, BallotShape};
use super::launch::{fail, failed_before, new_work};
use super::layout::BucketLayout;
use super::memory::GradMemory;
use super::options::MissingPolicy;
use super::step::{GradMark, ReducerStep};
use super::task::BallotTask;
use super::{Reducer, ReducerPhase, ReducerState};
use crate::api::group::process_group::Group;
use crate::api::work::callbacks;
use crate::api::work::handle::Work;
use crate::api::work::issue::enqueue_task;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorContext as _, ErrorKind, Result};
use crate::base::log::LogLevel;
use crate::wait::{WaitPolicy, wait_until};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// The maximum number of names in an error text.
const MAX_NAMES_LISTED: usize = 5;

/// The callback that receives the votes of all ranks.
pub struct VoteDelivery(Box<dyn FnOnce(u64) + Send>);

impl VoteDelivery {
    /// Wraps a callback, which must not block.
    pub fn new(take: impl FnOnce(u64) + Send + 'static) -> Self {
        Self(Box::new(take))
    }
}

impl fmt::Debug for VoteDelivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Deliver")
    }
}

/// The progress of a step's end after it began.
pub(super) enum StepEnd {
    /// The step has ended.
    Completed(Result<()>),
    /// The step ends when this work completes.
    Pending(Arc<Work>),
}

impl Reducer {
    /// Creates a work for [`Self::end_with`].
    ///
    /// # Errors
    /// `InvalidHandle` if the group was released.
    pub fn new_work(&self) -> Result<Arc<Work>> {
        Ok(new_work(&*self.lock().group()?))
    }

    /// Ends a step. Waits until it has ended and all functions of [`Self::on_bucket`] have
    /// returned. `vote` is 0 for the step, otherwise the reasons against it; `deliver` receives the
    /// reasons of all ranks.
    ///
    /// # Errors
    /// `InvalidArgument` if no step is open, or if a rank did not mark a parameter; the errors of
    /// the operations of the step.
    pub fn end(self: &Arc<Self>, vote: u64, deliver: VoteDelivery) -> Result<()> {
        callbacks::reject_blocking_in_callback("dist_reducer_end")?;
        let begun = Instant::now();
        let ended = self.begin_end(vote, deliver, None)?;
        let communicates = matches!(ended, StepEnd::Pending(_));
        let outcome = match ended {
            StepEnd::Completed(outcome) => outcome,
            StepEnd::Pending(work) => {
                work.set_awaited();
                work.wait(&Deadline::never()).map(drop)
            }
        };
        if outcome.is_err() {
            self.await_step();
        }
        let called = self.await_callbacks();
        if communicates {
            self.settled().totals.exposed(begun.elapsed());
        }
        outcome.and(called)
    }

    /// Ends a step like [`Self::end`] without waiting: the work completes when the step has ended.
    ///
    /// # Errors
    /// The errors of [`Self::end`], except errors of operations, which the work reports.
    pub fn end_with(
        self: &Arc<Self>,
        vote: u64,
        deliver: VoteDelivery,
        work: &Arc<Work>,
    ) -> Result<()> {
        match self.begin_end(vote, deliver, Some(work))? {
            StepEnd::Completed(outcome) => work.end(outcome.map(|()| None)),
            StepEnd::Pending(_) => {}
        }
        Ok(())
    }

    /// Waits until the operations of the step have ended. Each operation has a deadline. After this
    /// call, no thread of the library uses the caller's memory.
    pub(super) fn await_step(&self) {
        let works = self.lock().works();
        works.iter().for_each(|work| drop(work.wait(&Deadline::never())));
    }

    fn begin_end(
        self: &Arc<Self>,
        vote: u64,
        deliver: VoteDelivery,
        work: Option<&Arc<Work>>,
    ) -> Result<StepEnd> {
        self.complete_gather()?;
        self.flush_device(vote)?;
        let mut state = self.settled();
        let state = &mut *state;
        match std::mem::replace(&mut state.phase, ReducerPhase::Idle) {
            ReducerPhase::Local(used) => {
                state.used_before.iter_mut().zip(used).for_each(|(before, now)| *before |= now);
                (deliver.0)(vote);
                Ok(StepEnd::Completed(Ok(())))
            }
            ReducerPhase::Adopted(votes, outcome) => {
                (deliver.0)(votes);
                Ok(StepEnd::Completed(outcome))
            }
            ReducerPhase::Open(step) => Ok(self.end_step(state, step, vote, (deliver, work))),
            ReducerPhase::Failed(step, error) => {
                let again = failed_before(&error);
                state.phase = ReducerPhase::Failed(step, error);
                Err(again)
            }
            phase @ (ReducerPhase::Idle | ReducerPhase::Ending(..)) => {
                state.phase = phase;
                Err(state.refuse("only an open step can end"))
            }
        }
    }

    /// Sends the remaining buckets of a step, and the ballot.
    pub(super) fn end_step(
        self: &Arc<Self>,
        state: &mut ReducerState,
        mut step: Box<ReducerStep>,
        vote: u64,
        (deliver, work): (VoteDelivery, Option<&Arc<Work>>),
    ) -> StepEnd {
        let sent = self.send_rest(state, &mut step, vote, work);
        match sent {
            Ok(work) => {
                state.phase = ReducerPhase::Ending(step, Arc::clone(&work), Some(deliver));
                StepEnd::Pending(work)
            }
            Err(error) => {
                state.phase = ReducerPhase::Failed(step, error.clone());
                StepEnd::Completed(Err(error))
            }
        }
    }

    fn send_rest(
        self: &Arc<Self>,
        state: &ReducerState,
        step: &mut ReducerStep,
        vote: u64,
        work: Option<&Arc<Work>>,
    ) -> Result<Arc<Work>> {
        let group = state.group()?;
        let missing = self.send_buckets(state, step, vote, &group);
        if let Some(error) = step.failure.take() {
            return Err(error);
        }
        let mut ballot = self.ballot(state, step, &group, vote);
        missing.iter().for_each(|&param| ballot.add_missing(group.rank(), param));
        let work = work.map_or_else(|| new_work(&group), Arc::clone);
        let options = self.call_options();
        let deadline = group.deadline(&options);
        let is_called = self.options.is_retryable && vote == 0 && !step.is_joined;
        if let Some(on_bucket) = state.on_bucket.as_ref().filter(|_| is_called) {
            let all = 0..state.memory.layout.buckets.len();
            let votes = Some(Arc::clone(&step.votes));
            let called =
                self.call_back(&state.memory, (&work, votes), on_bucket, (all, step.number));
            called.map_err(|error| fail(&group, error))?;
        }
        let works = [Arc::clone(&work)];
        let reducer = Arc::clone(self);
        let task = BallotTask { reducer, ballot, step: step.number, options, works };
        enqueue_task(Arc::clone(&group), deadline, task).map_err(|error| fail(&group, error))?;
        Ok(work)
    }

    /// Sends the remaining buckets without a ballot.
    pub(super) fn send_buckets(
        self: &Arc<Self>,
        state: &ReducerState,
        step: &mut ReducerStep,
        vote: u64,
        group: &Arc<Group>,
    ) -> Vec<usize> {
        let missing = self.resolve_rest(state, step, vote);
        self.send_weights(step, group);
        if !self.waits_for_weights(step) {
            step.is_held_back = false;
            self.send_full_buckets(state, step, group);
        }
        missing
    }

    /// Decides how unmarked parameters are handled. Returns the parameters whose missing mark is an
    /// error.
    fn resolve_rest(&self, state: &ReducerState, step: &mut ReducerStep, vote: u64) -> Vec<usize> {
        let open: Vec<usize> = step.unmarked(&self.params).collect();
        for param in open {
            // The gradient was computed in a step without communication.
            let is_there = state.used_before[param] && !step.is_joined;
            let mark = if is_there { GradMark::Ready } else { GradMark::Missing };
            step.resolve(&state.memory, param, mark);
        }
        if self.options.missing != MissingPolicy::Error || vote != 0 || step.is_joined {
            return Vec::new();
        }
        let is_missing = |&param: &usize| step.marks[param] == GradMark::Missing;
        (0..self.params.len()).filter(is_missing).collect()
    }

    pub(super) fn ballot(
        &self,
        state: &ReducerState,
        step: &ReducerStep,
        group: &Group,
        vote: u64,
    ) -> Ballot {
        let (ranks, params) = (group.size(), self.params.len());
        let mut ballot = Ballot::new(BallotShape { ranks, params, has_order: state.wants_order });
        ballot.vote(group.rank(), vote);
        let used = step.marks.iter().enumerate().filter(|&(_, &mark)| mark == GradMark::Ready);
        used.for_each(|(param, _)| ballot.add_used(param));
        if group.rank() == 0 && !step.is_joined {
            ballot.set_order(&self.whole_order(step));
        }
        ballot
    }

    /// Returns the order in which gradients became ready, followed by the remaining gradients.
    fn whole_order(&self, step: &ReducerStep) -> Vec<usize> {
        let rest = (0..self.params.len()).rev().filter(|&param| {
            self.params[param].is_trained() && step.marks[param] != GradMark::Ready
        });
        step.order.iter().copied().chain(rest).collect()
    }

    /// Ends the step after the ranks have agreed.
    ///
    /// # Errors
    /// `InvalidArgument` if a rank did not mark a parameter; `OutOfMemory`, `System` if the layout
    /// cannot change, which fails the group.
    pub(super) fn conclude(&self, group: &Group, ballot: &Ballot) -> Result<()> {
        let mut state = self.lock();
        let state = &mut *state;
        match std::mem::replace(&mut state.phase, ReducerPhase::Idle) {
            ReducerPhase::Ending(step, _, deliver) => {
                let outcome = self.finish(state, *step, ballot, group);
                if let Some(deliver) = deliver {
                    (deliver.0)(ballot.votes());
                }
                outcome
            }
            other => {
                state.phase = other;
                Err(Error::internal("the ranks agreed on a step that is not ending"))
            }
        }
    }

    /// Applies the consequences of an agreement.
    pub(super) fn finish(
        &self,
        state: &mut ReducerState,
        mut step: ReducerStep,
        ballot: &Ballot,
        group: &Group,
    ) -> Result<()> {
        step.times.ended = Some(Instant::now());
        let settled = self.settle(&step, ballot, group);
        // A step ends only once, so the votes are set once.
        _ = step.votes.set(ballot.votes());
        state.sparse.extend(step.notes.lock().sparse.drain(..));
        state.steps += 1;
        state.used_before.fill(false);
        if let Some(lowest) = step.sums.as_ref().and_then(|sums| sums.lowest_active()) {
            state.last_active = lowest;
        }
        let updates = std::mem::take(&mut step.notes.lock().hook_updates);
        let is_agreed = ballot.votes() == 0 && ballot.missing().is_empty();
        if let Some(hook) = self.hook.as_ref().filter(|_| is_agreed) {
            hook.commit(updates);
        }
        let is_whole = is_agreed && !step.is_joined;
        if self.options.is_static && state.expected_marks.is_none() && is_whole {
            state.expected_marks = Some(std::mem::take(&mut step.counts));
        }
        state.last = Some(ballot.clone());
        let rebuilt = self.rebuild(state, ballot, group).inspect_err(|error| {
            group.fail_with_local_blame(error.clone());
        });
        state.totals.add(&step, state.memory.layout.buckets.len());
        self.log_step(state, &step, ballot, group);
        settled.and(rebuilt).and_then(|()| self.missing_error(ballot))
    }

    /// Makes the copies that waited for the agreement. Without a stream of the caller, a device has
    /// completed them on return.
    fn settle(&self, step: &ReducerStep, ballot: &Ballot, group: &Group) -> Result<()> {
        let device = self.device.as_ref();
        let held = step.notes.lock().settle(ballot, device)?;
        match device {
            // The held memory is freed after this, so it must not be in use, and there is no
            // caller's stream that could order the release.
            Some(stream) if !held.is_empty() => stream.drain(&group.deadline(&self.call_options())),
            _ => Ok(()),
        }
    }

    /// Changes the layout to the order of rank 0, once. A rank that voted against the step may not
    /// have marked its gradients, so such a step does not change the layout.
    fn rebuild(&self, state: &mut ReducerState, ballot: &Ballot, group: &Group) -> Result<()> {
        let order = ballot.order();
        if !state.wants_order || order.is_empty() || ballot.votes() != 0 {
            return Ok(());
        }
        state.wants_order = false;
        let layout =
            BucketLayout::in_order(&self.params, &order, self.options.limits(&self.params));
        if layout == state.memory.layout {
            return Ok(());
        }
        let memory = self
            .memory_of(group, layout, &state.memory)
            .context(|| "the new layout of the buckets")?;
        state.memory = Arc::new(memory);
        state.totals.rebuilds += 1;
        crate::log!(
            LogLevel::Info,
            "{}: the reducer has {} buckets in the order in which gradients became ready on rank 0",
            group.describe_rank(),
            state.memory.layout.buckets.len()
        );
        Ok(())
    }

    /// Allocates the memory of a new layout and copies the gradients of the former one.
    fn memory_of(
        &self,
        group: &Group,
        layout: BucketLayout,
        former: &GradMemory,
    ) -> Result<GradMemory> {
        let device = self.device.as_ref();
        let memory = GradMemory::new(group, layout, self.options.apart(), device)?;
        memory.take_values(former, device)?;
        if let Some(stream) = device {
            stream.drain(&group.deadline(&self.call_options()))?;
        }
        Ok(memory)
    }

    /// Returns the error of a step in which a rank did not mark a parameter.
    pub(super) fn missing_error(&self, ballot: &Ballot) -> Result<()> {
        let missing = ballot.missing();
        if missing.is_empty() {
            return Ok(());
        }
        let named: Vec<String> = missing
            .iter()
            .take(MAX_NAMES_LISTED)
            .filter_map(|&param| self.params.get(param))
            .map(|param| format!("\"{}\"", param.name))
            .collect();
        let more = match missing.len().saturating_sub(MAX_NAMES_LISTED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let ranks: Vec<String> =
            ballot.ranks_with_missing().iter().map(ToString::to_string).collect();
        let message = format!(
            "the gradients of {}{more} were not marked on rank {}: mark them with dist_reducer_ready or \
             dist_reducer_unused, or set `missing` in the options",
            named.join(", "),
            ranks.join(", ")
        );
        Err(Error::invalid(message))
    }

    /// Waits until the caller's functions have returned, without a limit. A completion callback
    /// cannot wait for other callbacks on its own thread.
    pub(super) fn await_last_callback(&self) {
        if callbacks::reject_blocking_in_callback("dist_reducer_release").is_err() {
            return;
        }
        let count = &self.callbacks;
        let returned = || (count.left.load(Ordering::Acquire) == 0).then_some(());
        // A wait without a deadline has no error.
        drop(wait_until(
            &count.doorbell,
            WaitPolicy::SLEEP_SOON,
            &Deadline::never(),
            || None,
            returned,
        ));
    }

    /// Waits until the caller's functions have returned.
    fn await_callbacks(&self) -> Result<()> {
        let count = &self.callbacks;
        let returned = || (count.left.load(Ordering::Acquire) == 0).then_some(());
        if returned().is_some() {
            return Ok(());
        }
        let limit = match self.options.timeout_ms {
            0 => self.lock().group()?.timeout_ms(),
            ms => ms,
        };
        wait_until(
            &count.doorbell,
            WaitPolicy::SLEEP_SOON,
            &Deadline::after_ms(limit),
            || None,
            returned,
        )
        .map_err(|_| {
            let message =
                format!("the functions of dist_reducer_on_bucket did not return within {limit} ms");
            Error::new(ErrorKind::Timeout, message)
        })
    }
}
