//! Hooks: ways to reduce a bucket other than one all_reduce. Most hooks send fewer bytes.
//!
//! A hook runs in the turn of its bucket, on the thread that runs the operations of the group. So
//! hooks of a group run one at a time and in the same order on all ranks, and a hook's buffers need
//! no lock of their own.
//!
//! Every hook adds up the gradients of all ranks, each multiplied by its rank's factor, and leaves
//! the same bits on all ranks; but for `none`, which sends nothing.
//!
//! Does not depend on: when buckets are sent, votes.

mod bucket;
mod cast;
mod choice;
mod function;
mod int8;
mod powersgd;

pub(super) use bucket::{HookBucket, HookTurn};
pub use choice::HookChoice;
pub use function::{HookBody, HookCall, HookFunction};
pub(super) use powersgd::PowerUpdate;

use super::param::Param;
use crate::api::group::Group;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::kernel;
use function::FunctionHook;
use int8::Int8Hook;
use powersgd::PowerSgd;
use std::sync::{Arc, Mutex, PoisonError};

/// A hook and its state between buckets.
#[derive(Debug)]
pub(super) struct Hook {
    /// How many operations of the group a bucket takes.
    operations: u64,
    state: Mutex<HookState>,
}

#[derive(Debug)]
enum HookState {
    Cast(DataType),
    Int8(Int8Hook),
    PowerSgd(PowerSgd),
    Off,
    Function(FunctionHook),
}

/// What a hook leaves behind for the end of the step.
#[derive(Debug, Default)]
pub(super) struct HookOutcome {
    /// The bytes of the bucket in the form in which they were sent.
    pub(super) bytes_sent: u64,
    /// What the hook keeps if the ranks agree on the step.
    pub(super) updates: Vec<PowerUpdate>,
}

impl Hook {
    /// The hook of a choice; `None` for one all_reduce per bucket. All ranks of the group make it
    /// together.
    ///
    /// # Errors
    /// `Unsupported` for gradients that the hook cannot reduce; those of making a group.
    pub(super) fn new(
        choice: &HookChoice,
        group: &Arc<Group>,
        params: &[Param],
        steps: u64,
    ) -> Result<Option<Self>> {
        let state = match choice {
            HookChoice::AllReduce => return Ok(None),
            HookChoice::Cast(dtype) => HookState::Cast(*dtype),
            HookChoice::Int8 { block } => HookState::Int8(Int8Hook::new(*block)),
            HookChoice::PowerSgd(settings) => {
                HookState::PowerSgd(PowerSgd::new(*settings, params, steps))
            }
            HookChoice::Off => HookState::Off,
            HookChoice::Function(function) => {
                HookState::Function(FunctionHook::new(function, group)?)
            }
        };
        let operations = match &state {
            HookState::Cast(_) | HookState::Off | HookState::Function(_) => 1,
            HookState::Int8(_) => int8::OPERATIONS,
            HookState::PowerSgd(_) => powersgd::OPERATIONS,
        };
        Ok(Some(Self { operations, state: Mutex::new(state) }))
    }

    /// How many operations of the group a bucket takes.
    pub(super) fn operations(&self) -> u64 {
        self.operations
    }

    /// Reduces the `send` buffers of all ranks into the `recv` buffer of each.
    ///
    /// # Errors
    /// Those of collectives, and of a caller's function.
    pub(super) fn reduce(
        &self,
        bucket: &HookBucket<'_>,
        turn: &mut HookTurn<'_>,
    ) -> Result<HookOutcome> {
        match &mut *self.lock() {
            HookState::Cast(dtype) => cast::reduce(*dtype, bucket, turn),
            HookState::Int8(hook) => hook.reduce(bucket, turn),
            HookState::PowerSgd(hook) => hook.reduce(bucket, turn),
            HookState::Off => {
                bucket.keep_own();
                Ok(HookOutcome::default())
            }
            HookState::Function(hook) => hook.reduce(bucket),
        }
    }

    /// The ranks have agreed on a step: keeps what its buckets have left.
    pub(super) fn commit(&self, updates: Vec<PowerUpdate>) {
        if let HookState::PowerSgd(hook) = &mut *self.lock() {
            hook.commit(updates);
        }
    }

    /// The reducer goes on in another group. All its ranks call this.
    ///
    /// # Errors
    /// Those of making a group.
    pub(super) fn regroup(&self, group: &Arc<Group>, steps: u64) -> Result<()> {
        // Without the lock: making a group may take long.
        let function = match &*self.lock() {
            HookState::Function(hook) => Some(hook.function()),
            _ => None,
        };
        let made = function.map(|function| FunctionHook::new(&function, group)).transpose()?;
        match (&mut *self.lock(), made) {
            (HookState::PowerSgd(hook), _) => hook.regroup(steps),
            (HookState::Function(hook), Some(made)) => *hook = made,
            _ => {}
        }
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HookState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HookChoice {
    /// Refuses a gradient that the hook cannot reduce.
    ///
    /// # Errors
    /// `Unsupported`.
    pub(super) fn check(&self, param: &Param) -> Result<()> {
        let wrong = match self {
            Self::AllReduce => return Ok(()),
            _ if param.is_sparse => return Ok(()),
            _ if param.device.is_some() => {
                "is in the memory of a device: hooks reduce gradients in host memory"
            }
            Self::Cast(_) | Self::Int8 { .. } | Self::PowerSgd(_)
                if !kernel::is_convertible(param.grad_dtype) =>
            {
                "is neither f16, bf16, f32 nor f64"
            }
            _ if !param.grad_dtype.is_float() => "is of integers",
            _ => return Ok(()),
        };
        let message = format!("the hook \"{}\": it {wrong}", self.name());
        Err(Error::new(ErrorKind::Unsupported, message))
    }
}
