//! Continuation of a reducer in another group, for example in the group of the survivors.
//!
//! A rank that missed the agreement on a step gets the agreement from a rank that has it. If no
//! rank has the agreement, the step is open again, and all ranks reduce the same gradients again.

use super::ballot::Ballot;
use super::operation::new_work;
use super::own_grads::OwnGrads;
use super::records;
use super::reducer_state::{Reducer, ReducerPhase};
use super::send::StepSender;
use super::state_agreement::{RecordExchange, ReducerRecord};
use super::step::ReducerStep;
use super::values::ParamSelection;
use crate::api::collective::call::CallOptions;
use crate::api::group::process_group::Group;
use crate::api::work::callbacks;
use crate::base::error::{Error, ErrorKind, Result};
use std::sync::{Arc, Weak};

impl Reducer {
    /// Continues in another group, for example in the group of the survivors. Each rank of `group`
    /// calls this, or creates a reducer.
    ///
    /// If a step has failed and steps can be retried, the step is open again after this call, and
    /// [`Reducer::end`] sends the same gradients again. If steps cannot be retried, the step is
    /// abandoned.
    ///
    /// # Errors
    /// `InvalidArgument` if a step is open in a group that has not failed; `Mismatch` on all ranks
    /// if parameters or options differ, and on this rank if it cannot catch up with the steps of
    /// another rank; the errors of collectives.
    pub fn regroup(self: &Arc<Self>, group: &Arc<Group>) -> Result<()> {
        callbacks::reject_blocking_in_callback("dist_reducer_regroup")?;
        let (record, text) = self.prepare_to_regroup(group)?;
        let call = self.call_options();
        let exchange = RecordExchange::exchange_records(group, &record, &self.params, &call)?;
        if !exchange.has_one_layout() {
            // The broadcast is for new ranks; this rank has the layout of the source rank.
            drop(records::broadcast(group, text.as_bytes(), exchange.source_rank, &call)?);
        }
        self.catch_up(group, &exchange, &call)?;
        self.catch_up_gathers(&exchange)?;
        self.share_again(group)?;
        if let Some(hook) = &self.hook {
            let steps = self.lock().steps;
            hook.regroup(group, steps)?;
        }
        if exchange.has_new() && !self.options.omits_broadcast {
            self.broadcast_in(group, exchange.source_rank, ParamSelection::ALL)?;
        }
        Ok(())
    }

    fn prepare_to_regroup(&self, group: &Group) -> Result<(ReducerRecord, String)> {
        self.await_step();
        if let Some(shard) = self.shard() {
            shard.await_gather();
        }
        let mut state = self.settled();
        let state = &mut *state;
        if let ReducerPhase::Open(_) = &state.phase {
            let failure = state.group.upgrade().map_or_else(
                || Some(Error::invalid("the group was released")),
                |former| former.failure(),
            );
            let Some(failure) = failure else {
                return Err(state.refuse("a reducer can change its group only between steps"));
            };
            state.fail_open_step(failure);
        }
        if matches!(state.phase, ReducerPhase::Ending(..) | ReducerPhase::Local(_)) {
            return Err(state.refuse("a reducer can change its group only between steps"));
        }
        let text = state.memory.layout.export(&self.params).to_string();
        let record = ReducerRecord {
            wants_order: state.wants_order,
            is_open: matches!(state.phase, ReducerPhase::Failed(..)),
            steps: state.steps,
            gathers: state.gathers,
            ..ReducerRecord::new(&self.params, &self.options, &text, state.initial_ranks)
        };
        crate::log!(
            crate::base::log::LogLevel::Info,
            "{}: the reducer continues at step {}",
            group.describe_rank(),
            state.steps
        );
        Ok((record, text))
    }

    /// If another rank has ended one more step than this rank, adopts the end of the step from that
    /// rank. Otherwise prepares a failed step of this rank for a retry.
    fn catch_up(
        &self,
        group: &Arc<Group>,
        exchange: &RecordExchange,
        call: &CallOptions,
    ) -> Result<()> {
        let old = || exchange.records.iter().filter(|record| !record.is_new);
        let max_steps = old().map(|record| record.steps).max().unwrap_or(0);
        let is_behind = old().any(|record| record.steps < max_steps);
        if !is_behind {
            return self.reopen(group);
        }
        let is_ahead = |record: &ReducerRecord| !record.is_new && record.steps == max_steps;
        let source_rank = exchange.records.iter().position(is_ahead).unwrap_or(0);
        let last = self.lock().last.as_ref().map(Ballot::encode).unwrap_or_default();
        let received = records::broadcast(group, &last, source_rank, call)?;
        let own = self.lock().steps;
        if own == max_steps {
            return self.reopen(group);
        }
        if own + 1 != max_steps {
            return Err(behind_error(own, max_steps));
        }
        let ballot = Ballot::decode(&received)
            .ok_or_else(|| Error::internal("the agreement on a step has an unknown format"))?;
        self.adopt(group, max_steps, &ballot)
    }

    /// If a gather has ended on another rank but not on this rank, records that it has ended. This
    /// is correct because a gather ends on one rank only after all ranks have all parameters.
    fn catch_up_gathers(&self, exchange: &RecordExchange) -> Result<()> {
        let old = exchange.records.iter().filter(|record| !record.is_new);
        let max_gathers = old.map(|record| record.gathers).max().unwrap_or(0);
        let (own, shard) = {
            let state = self.lock();
            (state.gathers, state.shard.as_ref().and_then(Weak::upgrade))
        };
        if own == max_gathers {
            return Ok(());
        }
        if !shard.is_some_and(|shard| own + 1 == max_gathers && shard.adopt()) {
            let message = format!(
                "this rank has gathered the parameters of {own} steps, but another rank those of {max_gathers}"
            );
            return Err(Error::new(ErrorKind::Mismatch, message));
        }
        self.lock().gathers = max_gathers;
        Ok(())
    }

    /// Splits the buckets over the ranks of the new group, if buckets are scattered.
    fn share_again(&self, group: &Group) -> Result<()> {
        if !self.options.is_sharded {
            return Ok(());
        }
        let memory = Arc::clone(&self.lock().memory);
        let own = OwnGrads::new(group, &memory.layout)?;
        if let Some(pool) = &memory.pool {
            pool.reset();
        }
        self.lock().own = Some(own);
        Ok(())
    }

    /// Ends a step with the ballot that another rank has sent.
    fn adopt(&self, group: &Arc<Group>, max_steps: u64, ballot: &Ballot) -> Result<()> {
        let mut state = self.lock();
        let state = &mut *state;
        let phase = std::mem::replace(&mut state.phase, ReducerPhase::Idle);
        let ReducerPhase::Failed(step, error) = phase else {
            state.phase = phase;
            return Err(behind_error(state.steps, max_steps));
        };
        let has_results = step.sent == state.memory.layout.buckets.len()
            && ballot.params() == self.params.len()
            && step.works.iter().all(|work| matches!(work.outcome(), Some(Ok(()))));
        if !has_results {
            let behind = behind_error(state.steps, max_steps);
            state.phase = ReducerPhase::Failed(step, error);
            return Err(behind);
        }
        state.group = Arc::downgrade(group);
        let is_joined = step.is_joined;
        // The caller's function for the buckets is called when this work ends.
        let ended = new_work(group);
        let sender = StepSender { reducer: self, state, group };
        let scheduled = sender.call_back_all(&step, &ended);
        let outcome = self.finish(state, *step, ballot, group);
        scheduled?;
        ended.end(Ok(None));
        state.totals.retries += 1;
        // A rank that joined the step without data does not call `end`.
        state.phase = if is_joined {
            ReducerPhase::Idle
        } else {
            ReducerPhase::Adopted(ballot.votes(), outcome)
        };
        Ok(())
    }

    /// Prepares a failed step for a retry.
    fn reopen(&self, group: &Arc<Group>) -> Result<()> {
        let mut state = self.lock();
        let state = &mut *state;
        state.group = Arc::downgrade(group);
        state.last_active = state.last_active.min(group.size() - 1);
        match std::mem::replace(&mut state.phase, ReducerPhase::Idle) {
            ReducerPhase::Failed(mut step, _) if self.options.is_retryable && !step.is_joined => {
                let limit = group.deadline(&self.call_options());
                let rewound = step.rewind(self.device.as_ref(), &limit);
                state.totals.retries += 1;
                state.phase = ReducerPhase::Open(step);
                rewound?;
            }
            ReducerPhase::Failed(step, _) => drop::<Box<ReducerStep>>(step),
            other => state.phase = other,
        }
        Ok(())
    }
}

/// Returns the error for ranks that have ended different numbers of steps.
fn behind_error(own: u64, max_steps: u64) -> Error {
    let message = format!(
        "this rank has ended {own} steps, but another rank {max_steps}: a rank can catch up only with a \
         step that it was about to end"
    );
    Error::new(ErrorKind::Mismatch, message)
}
