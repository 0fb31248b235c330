//! Back ends of other libraries (plug-ins), which implement a few functions: submit an operation,
//! test it, wait for it, release it.
//!
//! [`Plugin`] and [`Communicator`] are these functions in Rust. The adapter of the C interface
//! implements them. This module adds the parts that are the same for every plug-in:
//!
//! - the bootstrap and the rank locations ([`bootstrap`]);
//! - one operation after another with its deadline, and the failure of the group ([`group`],
//!   [`failure_state`]);
//! - point-to-point messages that progress without a waiting thread ([`messages`]);
//! - the current device in calls ([`device_current`]);
//! - the composition of missing operations from available ones ([`compose`]).
//!
//! The library does not trust a plug-in. It validates returned values, and it reports calls that do
//! not return in time.
//!
//! This module does not depend on C types, on the loading of plug-ins, or on other back ends.

mod bootstrap;
mod compose;
mod device_current;
mod failure_state;
mod group;
mod messages;
mod task;

pub use failure_state::PluginFailureState;
pub use task::{
    GrowableBuffer, PluginMessageStatus, PluginRequest, PluginTask, RunOutcome, SubmitOutcome,
    TaskKind,
};

use super::registry::{self, BackendFactory};
use super::{Backend, BootstrapExchange, GroupContext, OpKind, SupportQuery};
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use serde_json::Value;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

/// A back end of another library.
pub trait Plugin: Send + Sync + Debug {
    /// Creates the communicator of this rank. All ranks of the group call it at the same time.
    /// `state` will have the failure of the group.
    ///
    /// # Errors
    /// Any error that prevents the creation.
    fn create(
        &self,
        context: &GroupContext<'_>,
        exchange: &dyn BootstrapExchange,
        state: &Arc<PluginFailureState>,
    ) -> Result<CreatedCommunicator>;
}

/// A communicator that a plug-in created for a group.
#[derive(Debug)]
pub struct CreatedCommunicator {
    /// The functions of the plug-in for this group.
    pub communicator: Arc<dyn Communicator>,
    /// The operations that the plug-in has.
    pub kinds: OperationKinds,
    /// True if the plug-in accepts memory of the group's device in the calls that it reports as
    /// supported.
    pub serves_device: bool,
}

/// The set of operations that a plug-in has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationKinds(u64);

impl OperationKinds {
    /// The bit of point-to-point messages. The bits of collectives are their numbers.
    const MESSAGES: u32 = 32;

    /// Returns the set of operations whose bits are set; all operations for 0.
    ///
    /// # Errors
    /// `InvalidArgument` for a bit without an operation.
    pub fn from_bits(bits: u64) -> Result<Self> {
        let all = OpKind::ALL.iter().fold(1 << Self::MESSAGES, |all, &kind| all | 1 << kind as u32);
        match bits {
            0 => Ok(Self(all)),
            _ if bits & !all == 0 => Ok(Self(bits)),
            _ => {
                let message = format!("kinds {bits:#x} has bits that are no operation");
                Err(Error::invalid(message))
            }
        }
    }

    fn bits(self) -> u64 {
        self.0
    }

    fn has(self, kind: OpKind) -> bool {
        self.0 & 1 << kind as u32 != 0
    }

    fn has_messages(self) -> bool {
        self.0 & 1 << Self::MESSAGES != 0
    }
}

/// The communicator of a plug-in for one group.
///
/// Obligations of the library:
///
/// - One thread at a time submits collectives, in the same order on all ranks. At the same time
///   other threads may submit, test and release messages, and abort.
/// - One thread at a time uses a request. The library does not use a request after it was released,
///   or after `test` or `wait` returned its result or error.
pub trait Communicator: Send + Sync + Debug {
    /// Begins an operation; it does not wait for other ranks.
    ///
    /// # Errors
    /// Any. `InvalidArgument` and `Unsupported` mean that the operation did not begin, on any rank.
    fn submit(&self, task: &PluginTask<'_>) -> Result<SubmitOutcome>;

    /// Returns true if the plug-in has [`Communicator::run`] and a call of it needs no slow
    /// preparation.
    fn has_fast_path(&self) -> bool;

    /// Runs a collective in one call, if the plug-in supports that: begins it and waits for its
    /// end, at most for `limit`. Returns `None` if the plug-in does not support it.
    ///
    /// # Errors
    /// Any. `InvalidArgument` and `Unsupported` have the same meaning as for `submit`.
    fn run(&self, task: &PluginTask<'_>, limit: Duration) -> Option<Result<RunOutcome>>;

    /// Checks without waiting whether an operation is complete.
    ///
    /// # Errors
    /// The error of the operation.
    fn test(&self, request: PluginRequest) -> Result<Option<PluginMessageStatus>>;

    /// Waits until an operation is complete; returns `None` once the limit passed or the group
    /// failed.
    ///
    /// # Errors
    /// The error of the operation.
    fn wait(&self, request: PluginRequest, limit: Duration) -> Result<Option<PluginMessageStatus>>;

    /// Releases an operation that is not complete. Afterwards the plug-in does not use its buffers.
    ///
    /// # Errors
    /// The plug-in may still use the buffers.
    fn release(&self, request: PluginRequest) -> Result<ReleaseReport>;

    /// Aborts the group after its failure: every wait must end, if possible also on other ranks.
    fn abort(&self, reason: &Error);

    /// Returns the reason why the plug-in cannot continue, if it cannot.
    fn failure(&self) -> Option<Error>;

    /// Checks whether the plug-in supports this kind of call of an operation that it has.
    ///
    /// # Errors
    /// `Unsupported`.
    fn supports(&self, query: &SupportQuery) -> Result<()>;

    /// Allocates memory for buffers; `None` if the plug-in has no allocator.
    ///
    /// # Errors
    /// `OutOfMemory`, or an error of the plug-in.
    fn allocate(&self, bytes: usize) -> Result<Option<Box<dyn super::BackendMemory>>>;

    /// Returns the plug-in's details for `dist_group_describe`.
    fn describe(&self) -> Value;
}

/// The cause, as far as the plug-in knows, for which a released operation did not complete.
#[derive(Clone, Debug, Default)]
pub struct ReleaseReport {
    /// The description; may be empty.
    pub text: String,
    /// The rank that is late.
    pub culprit: Option<Rank>,
}

impl ReleaseReport {
    /// Adds the report to the error that ended the operation.
    fn annotate(self, error: Error) -> Error {
        let annotated = match self.text.as_str() {
            "" => error.clone(),
            text => Error::new(error.kind(), format!("{error}: {text}")),
        };
        match error.culprit().or(self.culprit) {
            Some(culprit) => annotated.with_culprit(culprit),
            None => annotated,
        }
    }
}

#[derive(Debug)]
struct RegisteredPlugin {
    name: &'static str,
    plugin: Arc<dyn Plugin>,
}

impl BackendFactory for RegisteredPlugin {
    fn create(
        &self,
        context: &GroupContext<'_>,
        exchange: &dyn BootstrapExchange,
    ) -> Result<Arc<dyn Backend>> {
        Ok(Arc::new(bootstrap::create(self.name, self.plugin.as_ref(), context, exchange)?))
    }
}

/// Registers a plug-in as a back end; `make` gets the normalized name.
///
/// # Errors
/// The errors of [`registry::register`].
pub fn register(
    name: &str,
    make: impl FnOnce(&'static str) -> Arc<dyn Plugin>,
) -> Result<&'static str> {
    registry::register(name, |name| Arc::new(RegisteredPlugin { name, plugin: make(name) }))
}
