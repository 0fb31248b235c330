//! The communicator of a plug-in: the functions of the plug-in for one group, as a trait, and the
//! operations that the plug-in has.

use super::task::{PluginMessageStatus, PluginRequest, PluginTask, RunOutcome, SubmitOutcome};
use crate::backend::{BackendMemory, OpKind, SupportQuery};
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use serde_json::Value;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

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

    pub(super) fn bits(self) -> u64 {
        self.0
    }

    pub(super) fn has(self, kind: OpKind) -> bool {
        self.0 & 1 << kind as u32 != 0
    }

    pub(super) fn has_messages(self) -> bool {
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
    fn allocate(&self, bytes: usize) -> Result<Option<Box<dyn BackendMemory>>>;

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
    pub(super) fn annotate(self, error: Error) -> Error {
        let culprit = error.culprit().or(self.culprit);
        if !self.text.is_empty() {
            return replace_message(&error, format!("{error}: {}", self.text), culprit);
        }
        match culprit {
            Some(culprit) => error.with_culprit(culprit),
            None => error,
        }
    }
}

/// Returns an error of the same kind with another message and this culprit.
pub(super) fn replace_message(error: &Error, message: String, culprit: Option<Rank>) -> Error {
    let replaced = Error::new(error.kind(), message);
    match culprit {
        Some(culprit) => replaced.with_culprit(culprit),
        None => replaced,
    }
}
