//! The state of a reducer: its parameters and options, and the phase of the current step.
//!
//! The other files of this folder implement the functions of the reducer's interface on these
//! types.

use super::ballot::{Ballot, VoteDelivery};
use super::bucket_callback::{CallbackCount, OnBucket};
use super::device::GradStream;
use super::hook::Hook;
use super::memory::GradMemory;
use super::options::ReducerOptions;
use super::own_grads::OwnGrads;
use super::param::Param;
use super::sparse::SparseResult;
use super::stats::ReducerTotals;
use super::step::ReducerStep;
use super::weights::StepSums;
use crate::api::collective::call::CallOptions;
use crate::api::group::process_group::Group;
use crate::api::work::handle::Work;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::sync::lock;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// Averages the gradients of a model over the ranks of a group.
#[derive(Debug)]
pub struct Reducer {
    pub(super) params: Vec<Param>,
    pub(super) options: ReducerOptions,
    /// The device of the gradients, if they are on a device.
    pub(super) device: Option<GradStream>,
    /// The hook that reduces buckets; `None` for one all_reduce per bucket.
    pub(super) hook: Option<Arc<Hook>>,
    pub(super) state: Mutex<ReducerState>,
    /// The number of scheduled calls of the function of [`Reducer::on_bucket`].
    pub(super) callbacks: Arc<CallbackCount>,
}

/// The interface of a shard ([`super::shard`]) for its reducer. A shard distributes the state of
/// the optimizer over the ranks. Each rank updates some parameters, and a gather sends the updated
/// parameters to all ranks.
pub(super) trait ShardGather: Send + Sync {
    /// Waits until no gather uses the parameters.
    fn await_gather(&self);

    /// Records that the gather has ended on another rank. Returns whether this rank has all
    /// parameters.
    fn adopt(&self) -> bool;

    /// Repeats a failed gather if the reducer now has another group. Returns the error of a gather
    /// that failed in the present group.
    fn complete(&self) -> Result<()>;
}

crate::base::trait_object_debug::impl_debug_of_objects!(ShardGather);

#[derive(Debug)]
pub(super) struct ReducerState {
    /// A weak reference, so that a rank can release the group before the reducer.
    pub(super) group: Weak<Group>,
    pub(super) memory: Arc<GradMemory>,
    /// The reduced gradients of this rank's own elements, if buckets are scattered over the ranks.
    pub(super) own: Option<Arc<OwnGrads>>,
    /// The shard that distributes the optimizer over the ranks.
    pub(super) shard: Option<Weak<dyn ShardGather>>,
    /// The number of completed gathers of the shard.
    pub(super) gathers: u64,
    pub(super) phase: ReducerPhase,
    /// The number of synchronised steps that have ended.
    pub(super) steps: u64,
    /// The number of ranks when the reducer was created.
    pub(super) initial_ranks: usize,
    /// Whether each parameter was used in the steps without communication since the last
    /// synchronised step.
    pub(super) used_before: Vec<bool>,
    /// Whether the ranks still need the order in which gradients become ready.
    pub(super) wants_order: bool,
    /// How often each parameter is marked in a step, if this is fixed and known.
    pub(super) expected_marks: Option<Vec<u32>>,
    /// The agreement on the last step that ended.
    pub(super) last: Option<Ballot>,
    /// The lowest rank with data in the last step in which a rank had data.
    pub(super) last_active: usize,
    pub(super) on_bucket: Option<OnBucket>,
    /// The reduced rows of sparse gradients of the last step that ended.
    pub(super) sparse: HashMap<usize, SparseResult>,
    pub(super) totals: ReducerTotals,
}

/// The phase of a reducer.
#[derive(Debug)]
pub(super) enum ReducerPhase {
    /// No step is open.
    Idle,
    /// A step without communication is open; the flags show the marked parameters.
    Local(Vec<bool>),
    /// A step is open. Its end was not called, or must be called again after [`Reducer::regroup`].
    Open(Box<ReducerStep>),
    /// The caller has ended the step, and the operation that agrees on the step is issued. The work
    /// is that of this operation.
    Ending(Box<ReducerStep>, Arc<Work>, Option<VoteDelivery>),
    /// The step failed at its end.
    Failed(Box<ReducerStep>, Error),
    /// The step has ended on another rank, which has sent the agreement to this rank. The fields
    /// are the votes of all ranks and the outcome, which this rank returns when [`Reducer::end`] is
    /// called again.
    Adopted(u64, Result<()>),
}

impl ReducerPhase {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Idle => "no step has begun",
            Self::Local(_) => "a step without communication is open",
            Self::Open(_) => "a step is open",
            Self::Ending(..) => "the ranks agree on a step",
            Self::Failed(..) => "a step has failed",
            Self::Adopted(..) => "a step has ended on other ranks",
        }
    }
}

impl Reducer {
    pub(super) fn lock(&self) -> MutexGuard<'_, ReducerState> {
        lock(&self.state)
    }

    /// Locks the state. If the last agreement has failed, first records the failure in the phase.
    pub(super) fn settled(&self) -> MutexGuard<'_, ReducerState> {
        let mut state = self.lock();
        state.settle();
        state
    }

    /// Locks the state between two steps. `needs` is the beginning of the error in other phases.
    ///
    /// # Errors
    /// `InvalidArgument` inside a step.
    pub(super) fn between_steps(&self, needs: &str) -> Result<MutexGuard<'_, ReducerState>> {
        let state = self.settled();
        let is_idle = matches!(state.phase, ReducerPhase::Idle);
        if is_idle { Ok(state) } else { Err(state.refuse(needs)) }
    }

    /// Returns the shard that distributes the optimizer over the ranks.
    pub(super) fn shard(&self) -> Option<Arc<dyn ShardGather>> {
        self.lock().shard.as_ref()?.upgrade()
    }

    /// Returns the options of an operation.
    pub(super) fn call_options(&self) -> CallOptions {
        CallOptions {
            timeout_ms: self.options.timeout_ms,
            canonical: self.options.is_canonical,
            ..CallOptions::DEFAULT
        }
    }

    /// Returns the parameter with this index, which must have a dense gradient.
    pub(super) fn dense(&self, param: usize) -> Result<&Param> {
        let known = self.trained(param)?;
        if !known.is_sparse {
            return Ok(known);
        }
        let message = format!(
            "the gradient of parameter \"{}\" is sparse: pass it to dist_reducer_ready_rows, and read it with \
             dist_reducer_rows",
            known.name
        );
        Err(Error::invalid(message))
    }

    /// Returns the parameter with this index, which must have a gradient.
    pub(super) fn trained(&self, param: usize) -> Result<&Param> {
        let Some(known) = self.params.get(param) else {
            let count = self.params.len();
            return Err(Error::invalid(format!(
                "parameter {param} does not exist: the reducer has {count} parameters"
            )));
        };
        if known.is_trained() {
            return Ok(known);
        }
        let message =
            format!("parameter \"{}\" is frozen or a buffer: it has no gradient", known.name);
        Err(Error::invalid(message))
    }
}

impl ReducerState {
    /// Returns the group if it was not released.
    pub(super) fn group(&self) -> Result<Arc<Group>> {
        self.group.upgrade().ok_or_else(|| {
            let message = "the group of the reducer was released: pass another one to dist_reducer_regroup, or release \
                           the reducer first";
            Error::new(ErrorKind::InvalidHandle, message)
        })
    }

    /// Changes the phase from `Ending` to `Failed` if the agreement on the step has failed.
    pub(super) fn settle(&mut self) {
        let ReducerPhase::Ending(_, work, _) = &self.phase else { return };
        let Some(Err(error)) = work.outcome() else { return };
        if let ReducerPhase::Ending(step, ..) =
            std::mem::replace(&mut self.phase, ReducerPhase::Idle)
        {
            self.phase = ReducerPhase::Failed(step, error);
        }
    }

    /// Returns the error of a call that is not allowed in the current phase.
    pub(super) fn refuse(&self, needs: &str) -> Error {
        let (phase, step) = (self.phase.name(), self.steps);
        Error::invalid(format!("{needs}, but {phase} (step {step})"))
    }

    /// Takes the open step, which leaves the phase [`ReducerPhase::Idle`]. Returns `None` in other
    /// phases.
    pub(super) fn take_open_step(&mut self) -> Option<Box<ReducerStep>> {
        if !matches!(self.phase, ReducerPhase::Open(_)) {
            return None;
        }
        match std::mem::replace(&mut self.phase, ReducerPhase::Idle) {
            ReducerPhase::Open(step) => Some(step),
            _ => None,
        }
    }

    /// Records the failure of the open step. An earlier failure of the step stays.
    pub(super) fn fail_open_step(&mut self, failure: Error) {
        if let Some(step) = self.take_open_step() {
            let failure = step.failure.clone().unwrap_or(failure);
            self.phase = ReducerPhase::Failed(step, failure);
        }
    }

    /// Returns the work that exchanges the weights of the open step, and its result.
    pub(super) fn step_sums(&self) -> Result<(Arc<Work>, Arc<StepSums>)> {
        let none = || Error::internal("the step of the other ranks has no weights");
        let ReducerPhase::Open(step) = &self.phase else { return Err(none()) };
        match (&step.failure, step.works.first(), &step.sums) {
            (Some(failure), ..) => Err(failure.clone()),
            (None, Some(work), Some(sums)) => Ok((Arc::clone(work), Arc::clone(sums))),
            _ => Err(none()),
        }
    }

    /// Returns the works of a step that is open, is ending, or has failed.
    pub(super) fn works(&self) -> Vec<Arc<Work>> {
        match &self.phase {
            ReducerPhase::Open(step) | ReducerPhase::Failed(step, _) => step.works.clone(),
            ReducerPhase::Ending(step, work, _) => {
                step.works.iter().chain(std::iter::once(work)).map(Arc::clone).collect()
            }
            ReducerPhase::Idle | ReducerPhase::Local(_) | ReducerPhase::Adopted(..) => Vec::new(),
        }
    }
}
