//! The beginning of a step, and the marks of gradients.

use super::bucket_callback::OnBucket;
use super::operation::failed_before;
use super::param::Param;
use super::reducer_state::{Reducer, ReducerPhase, ReducerState};
use super::send::StepSender;
use super::sparse::SparseInput;
use super::step::{GradMark, ReducerStep, marked_twice};
use super::values::ParamSelection;
use crate::api::group::process_group::Group;
use crate::base::error::{Error, Result};
use std::sync::Arc;

/// A mark of the caller on a gradient.
#[derive(Clone, Copy, Debug)]
pub(super) enum CallerMark {
    Ready,
    /// A sparse gradient is ready.
    ReadyRows(SparseInput),
    Unused,
}

impl Reducer {
    /// Registers a function that is called with each reduced bucket; `None` removes it.
    ///
    /// # Errors
    /// `InvalidArgument` inside a step.
    pub fn on_bucket(&self, function: Option<OnBucket>) -> Result<()> {
        let mut state =
            self.between_steps("a function for buckets can be set only between steps")?;
        state.on_bucket = function;
        Ok(())
    }

    /// Begins a step. `weight` is used only if the sum of gradients is divided by the sum of
    /// weights. If `syncs` is false, the step only records which parameters are used. Its gradients
    /// stay on this rank, and the caller adds the gradients of the next step to them.
    ///
    /// # Errors
    /// `InvalidArgument` if a step is open or the weight is negative or no number; errors of
    /// operations that are issued.
    pub fn begin(&self, weight: f64, syncs: bool) -> Result<()> {
        if !weight.is_finite() || weight < 0.0 {
            let message = format!("weight is {weight}: pass the number of samples of this rank");
            return Err(Error::invalid(message));
        }
        let group = {
            let mut state = self.settled();
            match &state.phase {
                ReducerPhase::Idle => {}
                ReducerPhase::Failed(_, error) => return Err(failed_before(error)),
                _ => {
                    return Err(
                        state.refuse("a step can begin only after the previous step has ended")
                    );
                }
            }
            if !syncs && self.options.shares_grads {
                let message = "DIST_STEP_NO_SYNC: with DIST_REDUCER_SHARE_GRADS gradients are not kept from step to step";
                return Err(Error::invalid(message));
            }
            if !syncs {
                state.phase = ReducerPhase::Local(vec![false; self.params.len()]);
                return Ok(());
            }
            state.group()?
        };
        if self.options.broadcasts_buffers {
            let outcome =
                self.broadcast_in(&group, self.lowest_rank_with_data(), ParamSelection::BUFFERS);
            self.unless_retryable(outcome)?;
        }
        let mut state = self.lock();
        self.open(&mut state, &group, weight, false)
    }

    /// Returns the rank whose buffers are broadcast: the lowest rank that had data in the last
    /// step.
    pub(super) fn lowest_rank_with_data(&self) -> usize {
        self.lock().last_active
    }

    /// Returns `outcome`, the result of an operation before the end of a step. If steps can be
    /// retried, returns `Ok` instead, because the end of the step reports the failure.
    fn unless_retryable(&self, outcome: Result<()>) -> Result<()> {
        if self.options.is_retryable { Ok(()) } else { outcome }
    }

    /// Opens a step that communicates.
    pub(super) fn open(
        &self,
        state: &mut ReducerState,
        group: &Arc<Group>,
        weight: f64,
        is_joined: bool,
    ) -> Result<()> {
        let mut step = Box::new(ReducerStep::new(state.steps, &state.memory, weight, is_joined));
        match &state.expected_marks {
            // The first step determines how often each parameter is marked, so it sends no bucket
            // before its end.
            None => step.is_held_back = self.options.is_static,
            Some(expected) => {
                for (param, _) in expected.iter().enumerate().filter(|&(_, &marks)| marks == 0) {
                    if self.params[param].is_trained() && !is_joined {
                        step.resolve(&state.memory, param, GradMark::Unused);
                    }
                }
            }
        }
        // The factor of a bucket on a device must be known when the bucket is sent.
        step.is_held_back |= self.device.is_some() && self.options.exchanges_weights();
        let sender = StepSender { reducer: self, state, group };
        sender.send_weights(&mut step);
        sender.send_full_buckets(&mut step);
        self.unless_retryable(step.check_failure())?;
        state.phase = ReducerPhase::Open(step);
        Ok(())
    }

    /// Marks gradients as ready. The gradients must not change until the step has ended.
    ///
    /// # Errors
    /// `InvalidArgument` outside a step, for a parameter without a gradient, and for a parameter
    /// that is already marked. The parameters before the wrong parameter in `params` are then
    /// marked. Also the errors of operations that are issued.
    pub fn ready(&self, params: &[usize]) -> Result<()> {
        self.mark(params, CallerMark::Ready)
    }

    /// Marks a parameter that this rank does not use in the step.
    ///
    /// # Errors
    /// The errors of [`Self::ready`].
    pub fn unused(&self, param: usize) -> Result<()> {
        self.mark(&[param], CallerMark::Unused)
    }

    pub(super) fn mark(&self, params: &[usize], mark: CallerMark) -> Result<()> {
        let mut state = self.lock();
        let state = &mut *state;
        if let ReducerPhase::Local(used) = &mut state.phase {
            for &param in params {
                self.check_form(param, mark)?;
                used[param] |= !matches!(mark, CallerMark::Unused);
            }
            return Ok(());
        }
        let Some(mut step) = state.take_open_step() else {
            return Err(
                state.refuse("gradients can be marked only inside a step (dist_reducer_begin)")
            );
        };
        let marked =
            params.iter().try_for_each(|&param| self.mark_one(state, &mut step, param, mark));
        let sent = match step.has_full_bucket() {
            true => state.group().map(|group| {
                StepSender { reducer: self, state, group: &group }.send_full_buckets(&mut step);
            }),
            false => Ok(()),
        };
        let failure = step.check_failure();
        state.phase = ReducerPhase::Open(step);
        marked?;
        sent?;
        self.unless_retryable(failure)
    }

    /// Checks that the parameter has a gradient, and that a ready mark without rows is for a dense
    /// gradient.
    fn check_form(&self, param: usize, mark: CallerMark) -> Result<&Param> {
        match mark {
            CallerMark::Ready => self.dense(param),
            CallerMark::ReadyRows(_) | CallerMark::Unused => self.trained(param),
        }
    }

    fn mark_one(
        &self,
        state: &ReducerState,
        step: &mut ReducerStep,
        param: usize,
        mark: CallerMark,
    ) -> Result<()> {
        let name = &self.check_form(param, mark)?.name;
        let expected = state.expected_marks.as_ref().map(|marks| marks[param]);
        let known = step.marks[param];
        let rows = match mark {
            CallerMark::Ready => None,
            CallerMark::ReadyRows(rows) => Some(rows),
            CallerMark::Unused => {
                match known {
                    GradMark::Open => step.resolve(&state.memory, param, GradMark::Unused),
                    GradMark::Unused if expected == Some(0) => {}
                    _ => return Err(marked_twice(name, step.number)),
                }
                return Ok(());
            }
        };
        step.counts[param] = step.counts[param].saturating_add(1);
        match expected {
            Some(0) => return Err(not_in_first_step(name, step.number)),
            Some(marks) if step.counts[param] < marks => return Ok(()),
            _ => {}
        }
        match known {
            GradMark::Open => step.resolve(&state.memory, param, GradMark::Ready),
            // The first step of a static graph counts the marks. Rows are passed only once.
            GradMark::Ready if step.is_held_back && rows.is_none() => {}
            _ => return Err(marked_twice(name, step.number)),
        }
        // The rows are stored only after the mark is accepted, because the step, or its retry,
        // sends all stored rows.
        step.sparse.extend(rows.map(|rows| (param, rows)));
        Ok(())
    }
}

fn not_in_first_step(name: &str, step: u64) -> Error {
    Error::invalid(format!(
        "parameter \"{name}\" was marked in step {step} but not in the first step: with \
         DIST_REDUCER_STATIC_GRAPH all steps use the same parameters"
    ))
}
