//! Uneven inputs: a rank without data takes part in the other ranks' steps with zeros, until no
//! rank has data.

use super::ballot::VoteDelivery;
use super::end::{StepEnd, StepVote};
use super::reducer_state::{Reducer, ReducerPhase};
use super::values::ParamSelection;
use crate::api::work::callbacks;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use std::sync::Arc;

impl Reducer {
    /// Takes part in the steps of other ranks until no rank has data. Then broadcasts the parameter
    /// values of the lowest rank that had data in the last step. Returns the number of steps.
    ///
    /// # Errors
    /// `InvalidArgument` inside a step, and if the options do not allow uneven inputs; the errors
    /// of the operations of a step.
    pub fn join(self: &Arc<Self>) -> Result<u64> {
        callbacks::reject_blocking_in_callback("dist_reducer_join")?;
        if !self.options.is_uneven {
            let message = "the reducer was created without DIST_REDUCER_UNEVEN: all ranks make the same number of steps";
            return Err(Error::invalid(message));
        }
        let mut steps = 0;
        loop {
            let needs = "a rank can join the steps of other ranks only between its own steps";
            let group = self.between_steps(needs)?.group()?;
            if self.options.broadcasts_buffers {
                let lowest = self.lowest_rank_with_data();
                self.broadcast_in(&group, lowest, ParamSelection::BUFFERS)?;
            }
            if !self.shadow_step()? {
                let last = self.lowest_rank_with_data();
                self.broadcast_in(&group, last, ParamSelection::ALL)?;
                return Ok(steps);
            }
            steps += 1;
        }
    }

    /// Takes part in one step; returns false if no rank has data.
    fn shadow_step(self: &Arc<Self>) -> Result<bool> {
        let sums = {
            let mut state = self.lock();
            let state = &mut *state;
            let group = state.group()?;
            self.open(state, &group, 0.0, true)?;
            state.step_sums()
        };
        let (work, sums) = sums?;
        work.set_awaited();
        if let Err(error) = work.wait(&Deadline::never()) {
            self.give_up(&error);
            return Err(error);
        }
        if sums.active().is_none_or(|active| active == 0.0) {
            self.lock().phase = ReducerPhase::Idle;
            return Ok(false);
        }
        let ended = {
            let mut state = self.lock();
            let state = &mut *state;
            let Some(step) = state.take_open_step() else {
                return Err(Error::internal("the open step of the other ranks is missing"));
            };
            let vote = StepVote { vote: 0, deliver: VoteDelivery::new(|_| ()), work: None };
            self.end_step(state, step, vote)
        };
        match ended {
            StepEnd::Completed(outcome) => outcome?,
            StepEnd::Pending(work) => {
                work.set_awaited();
                if let Err(error) = work.wait(&Deadline::never()) {
                    self.await_step();
                    return self.settle_shadow(error);
                }
            }
        }
        Ok(true)
    }

    /// Returns true if a step of other ranks has ended in spite of `error`, otherwise the error. A
    /// step in which a rank did not mark a parameter returns an error, but has ended.
    fn settle_shadow(&self, error: Error) -> Result<bool> {
        match self.settled().phase {
            ReducerPhase::Idle => Ok(true),
            _ => Err(error),
        }
    }

    /// Records that a step of other ranks could not begin.
    fn give_up(&self, error: &Error) {
        let mut state = self.lock();
        if let Some(step) = state.take_open_step() {
            state.phase = ReducerPhase::Failed(step, error.clone());
        }
    }
}
