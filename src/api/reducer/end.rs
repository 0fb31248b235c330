//! The end of a step: unmarked parameters, the agreement of all ranks, and its consequences.

use super::ballot::{Ballot, VoteDelivery};
use super::layout::BucketLayout;
use super::memory::GradMemory;
use super::operation::{self, OperationTurn, ReducerOperation, fail, failed_before, new_work};
use super::reducer_state::{Reducer, ReducerPhase, ReducerState};
use super::send::StepSender;
use super::step::ReducerStep;
use crate::api::collective::call::Call;
use crate::api::group::process_group::Group;
use crate::api::work::callbacks;
use crate::api::work::handle::Work;
use crate::base::buffer::Dst;
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorContext as _, ErrorKind, Result};
use crate::base::label::Label;
use crate::base::log::LogLevel;
use crate::base::op::ReduceOp;
use crate::transport::Descriptor;
use std::sync::Arc;
use std::time::Instant;

/// The maximum number of names in an error text.
const MAX_NAMES_LISTED: usize = 5;

/// The state of a step's end after [`Reducer::begin_end`].
pub(super) enum StepEnd {
    /// The step has ended.
    Completed(Result<()>),
    /// The step ends when this work completes.
    Pending(Arc<Work>),
}

/// The vote of this rank on a step.
pub(super) struct StepVote<'w> {
    /// 0 for the step, otherwise a bit set of the reasons against the step.
    pub(super) vote: u64,
    pub(super) deliver: VoteDelivery,
    /// The work that completes with the step. If `None`, the reducer creates it.
    pub(super) work: Option<&'w Arc<Work>>,
}

impl Reducer {
    /// Creates a work for [`Self::end_with`].
    ///
    /// # Errors
    /// `InvalidHandle` if the group was released.
    pub fn new_work(&self) -> Result<Arc<Work>> {
        Ok(new_work(&*self.lock().group()?))
    }

    /// Ends a step. Waits until the step has ended and all calls of the function of
    /// [`Self::on_bucket`] have returned. `vote` is 0 for the step, otherwise a bit set of the
    /// reasons against it. `deliver` receives the combined votes of all ranks.
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
        if let Some(shard) = self.shard() {
            shard.complete()?;
        }
        self.flush_device(vote)?;
        let mut state = self.settled();
        let state = &mut *state;
        match std::mem::replace(&mut state.phase, ReducerPhase::Idle) {
            ReducerPhase::Local(used) => {
                state.used_before.iter_mut().zip(used).for_each(|(before, now)| *before |= now);
                deliver.deliver(vote);
                Ok(StepEnd::Completed(Ok(())))
            }
            ReducerPhase::Adopted(votes, outcome) => {
                deliver.deliver(votes);
                Ok(StepEnd::Completed(outcome))
            }
            ReducerPhase::Open(step) => {
                Ok(self.end_step(state, step, StepVote { vote, deliver, work }))
            }
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
        vote: StepVote<'_>,
    ) -> StepEnd {
        match self.send_rest(state, &mut step, &vote) {
            Ok(work) => {
                state.phase = ReducerPhase::Ending(step, Arc::clone(&work), Some(vote.deliver));
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
        &StepVote { vote, work, .. }: &StepVote<'_>,
    ) -> Result<Arc<Work>> {
        let group = state.group()?;
        let sender = StepSender { reducer: self, state, group: &group };
        let missing = sender.send_buckets(step, vote);
        if let Some(error) = step.failure.take() {
            return Err(error);
        }
        let mut ballot = sender.ballot(step, vote);
        missing.iter().for_each(|&param| ballot.add_missing(group.rank(), param));
        let work = work.map_or_else(|| new_work(&group), Arc::clone);
        let scheduled = if vote == 0 { sender.call_back_all(step, &work) } else { Ok(()) };
        let task = BallotTask { reducer: Arc::clone(self), ballot, step: step.number };
        scheduled
            .and_then(|()| operation::enqueue(&group, self.call_options(), &work, task))
            .map_err(|error| fail(&group, error))?;
        Ok(work)
    }

    /// Ends the step after the ranks have agreed.
    ///
    /// # Errors
    /// `InvalidArgument` if a rank did not mark a parameter; `OutOfMemory`, `System` if the layout
    /// cannot change, which fails the group.
    fn conclude(&self, group: &Group, ballot: &Ballot) -> Result<()> {
        let mut state = self.lock();
        let state = &mut *state;
        match std::mem::replace(&mut state.phase, ReducerPhase::Idle) {
            ReducerPhase::Ending(step, _, deliver) => {
                let outcome = self.finish(state, *step, ballot, group);
                if let Some(deliver) = deliver {
                    deliver.deliver(ballot.votes());
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
        state.sparse.extend(step.log.lock().sparse.drain(..));
        state.steps += 1;
        state.used_before.fill(false);
        if let Some(lowest) = step.sums.as_ref().and_then(|sums| sums.lowest_active()) {
            state.last_active = lowest;
        }
        let updates = std::mem::take(&mut step.log.lock().hook_updates);
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

    /// Makes the copies that waited for the agreement. If the gradients are on a device, the device
    /// has completed these copies on return.
    fn settle(&self, step: &ReducerStep, ballot: &Ballot, group: &Group) -> Result<()> {
        let device = self.device.as_ref();
        let held = step.log.lock().settle(ballot, device)?;
        match device {
            // The sources of the copies are freed when this function returns, so the device must
            // have completed the copies.
            Some(stream) if !held.is_empty() => stream.drain(&group.deadline(&self.call_options())),
            _ => Ok(()),
        }
    }

    /// Changes the layout, once, to the order in which gradients became ready on rank 0. A rank
    /// that voted against the step may not have marked its gradients, so such a step does not
    /// change the layout.
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

    /// Allocates the memory of a new layout, and copies the gradients from the memory of the former
    /// layout.
    fn memory_of(
        &self,
        group: &Group,
        layout: BucketLayout,
        former: &GradMemory,
    ) -> Result<GradMemory> {
        let device = self.device.as_ref();
        let memory = GradMemory::new(group, layout, self.options.memory_needs(), device)?;
        memory.take_values(former, device)?;
        if let Some(stream) = device {
            stream.drain(&group.deadline(&self.call_options()))?;
        }
        Ok(memory)
    }

    /// Returns the error of a step in which a rank did not mark a parameter.
    fn missing_error(&self, ballot: &Ballot) -> Result<()> {
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

    /// Waits without a limit until all calls of the caller's function have returned. Does not wait
    /// inside a completion callback, which cannot wait for other callbacks on its own thread.
    pub(super) fn await_last_callback(&self) {
        if callbacks::reject_blocking_in_callback("dist_reducer_release").is_ok() {
            self.callbacks.wait(&Deadline::never());
        }
    }

    /// Waits until all calls of the caller's function have returned, at most for the time limit of
    /// operations.
    fn await_callbacks(&self) -> Result<()> {
        if self.callbacks.is_zero() {
            return Ok(());
        }
        let limit = match self.options.timeout_ms {
            0 => self.lock().group()?.timeout_ms(),
            ms => ms,
        };
        if self.callbacks.wait(&Deadline::after_ms(limit)) {
            return Ok(());
        }
        let message =
            format!("the functions of dist_reducer_on_bucket did not return within {limit} ms");
        Err(Error::new(ErrorKind::Timeout, message))
    }
}

/// The operation that agrees on a step and ends it.
#[derive(Debug)]
struct BallotTask {
    reducer: Arc<Reducer>,
    ballot: Ballot,
    step: u64,
}

/// Returns the all_reduce that combines the ballots. Its descriptor depends only on the ballot's
/// shape.
fn combine(ballot: &mut [u8]) -> Call<'_> {
    let view = Dst::from(ballot);
    Call::all_reduce(view.as_src(), view, DataType::U8, ReduceOp::BitOr)
}

impl ReducerOperation for BallotTask {
    fn descriptor(&self, sequence: u64, label: Label) -> Descriptor {
        combine(&mut self.ballot.bytes().to_vec()).descriptor(sequence, label)
    }

    fn title(&self, descriptor: &Descriptor) -> String {
        format!("the end of step {} ({descriptor})", self.step)
    }

    fn run(&mut self, mut turn: OperationTurn<'_>) -> Result<()> {
        turn.run(&combine(self.ballot.bytes_mut()))?;
        self.reducer.conclude(turn.group, &self.ballot)
    }
}
