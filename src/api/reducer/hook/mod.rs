//! Communication hooks: methods that reduce a bucket in place of an all_reduce. Most hooks send
//! fewer bytes than an all_reduce.
//!
//! A hook runs in the turn of its bucket (the time in which the bucket's operation holds the queue
//! of the group), on the thread that runs the operations of the group. The hooks of a group
//! therefore run one at a time and in the same order on all ranks, so a hook's buffers need no lock
//! of their own.
//!
//! Every hook adds the gradients of all ranks, each multiplied by its rank's factor, and leaves the
//! same bits on all ranks. The exception is `none`, which sends nothing.
//!
//! This module does not depend on when buckets are sent, or on the votes.

mod bucket;
mod choice;
mod function;
mod int8;
mod powersgd;

pub(super) use bucket::{HookBucket, PowerUpdate};
pub use choice::HookChoice;
pub use function::{HookBody, HookCall, HookFunction};

use super::operation::OperationTurn;
use super::param::Param;
use crate::api::group::process_group::Group;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::sync::lock;
use crate::kernel;
use bucket::HookOutcome;
use function::FunctionHook;
use int8::Int8Hook;
use powersgd::PowerSgd;
use std::sync::{Arc, Mutex, MutexGuard};

/// A hook and its state between buckets.
#[derive(Debug)]
pub(super) struct Hook {
    /// The number of the group's operations for each bucket.
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

impl Hook {
    /// Creates the hook of a choice; returns `None` for one all_reduce per bucket. All ranks of the
    /// group call this.
    ///
    /// # Errors
    /// `Unsupported` for gradients that the hook cannot reduce; the errors of making a group.
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

    /// Returns the number of the group's operations for each bucket.
    pub(super) fn operations(&self) -> u64 {
        self.operations
    }

    /// Reduces the `send` buffers of all ranks into the `recv` buffer of each rank.
    ///
    /// # Errors
    /// The errors of collectives, and of a caller's function.
    pub(super) fn reduce(
        &self,
        bucket: &HookBucket<'_>,
        turn: &mut OperationTurn<'_>,
    ) -> Result<HookOutcome> {
        match &mut *self.lock() {
            HookState::Cast(dtype) => bucket.reduce_as(*dtype, turn),
            // These hooks compute outside of the kernels, and all ranks must get the same bits.
            HookState::Int8(hook) => kernel::with_default_float_mode(|| hook.reduce(bucket, turn)),
            HookState::PowerSgd(hook) => {
                kernel::with_default_float_mode(|| hook.reduce(bucket, turn))
            }
            HookState::Off => {
                bucket.keep_own();
                Ok(HookOutcome::default())
            }
            HookState::Function(hook) => hook.reduce(bucket),
        }
    }

    /// Keeps the updates of a step's buckets after the ranks have agreed on the step.
    pub(super) fn commit(&self, updates: Vec<PowerUpdate>) {
        if let HookState::PowerSgd(hook) = &mut *self.lock() {
            hook.commit(updates);
        }
    }

    /// Moves the hook to another group. All ranks of `group` call this.
    ///
    /// # Errors
    /// The errors of making a group.
    pub(super) fn regroup(&self, group: &Arc<Group>, steps: u64) -> Result<()> {
        // The lock is not held here, because the creation of a group may take long.
        let function = match &*self.lock() {
            HookState::Function(hook) => Some(hook.function()),
            _ => None,
        };
        let created = function.map(|function| FunctionHook::new(&function, group)).transpose()?;
        match (&mut *self.lock(), created) {
            (HookState::PowerSgd(hook), _) => hook.regroup(steps),
            (HookState::Function(hook), Some(created)) => *hook = created,
            _ => {}
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, HookState> {
        lock(&self.state)
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
                "is in the memory of a device, and hooks reduce gradients in host memory only"
            }
            Self::Cast(_) | Self::Int8 { .. } | Self::PowerSgd(_)
                if !kernel::is_convertible(param.grad_dtype) =>
            {
                "is neither f16, bf16, f32 nor f64"
            }
            _ if !param.grad_dtype.is_float() => "has an integer type",
            _ => return Ok(()),
        };
        let message = format!("the hook \"{}\" does not support it: it {wrong}", self.name());
        Err(Error::new(ErrorKind::Unsupported, message))
    }
}
