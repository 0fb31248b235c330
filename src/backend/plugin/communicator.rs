//! The communicator of a plug-in. The trait [`Communicator`] contains the functions of the plug-in
//! for one group, and [`OperationKinds`] contains the operations that the plug-in has.

use super::task::{PluginMessageStatus, PluginRequest, PluginTask, RunOutcome, SubmitOutcome};
use crate::backend::{BackendMemory, OpKind, SupportQuery};
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

/// A communicator that a plug-in has created for a group, and its properties.
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
    /// The bit of point-to-point messages. The bit of a collective is the number of its [`OpKind`].
    const MESSAGES: u32 = 32;

    /// Returns the set of operations whose bits are set in `bits`. If `bits` is 0, returns the set
    /// of all operations.
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
/// - The library submits collectives from one thread at a time, and in the same order on all ranks.
///   At the same time, other threads may submit, test and release messages, and may call `abort`.
/// - The library uses a request from one thread at a time. It does not use a request after the
///   request was released, or after `test` or `wait` has returned its result or error.
pub trait Communicator: Send + Sync {
    /// Begins an operation. Does not wait for other ranks.
    ///
    /// # Errors
    /// Any error. `InvalidArgument` and `Unsupported` mean that the operation has not begun on any
    /// rank.
    fn submit(&self, task: &PluginTask<'_>) -> Result<SubmitOutcome>;

    /// Returns true if the plug-in supports [`Communicator::run`], and a call of `run` needs no
    /// slow preparation.
    fn has_fast_path(&self) -> bool;

    /// Runs a collective in one call: begins the operation, and waits for its end for at most
    /// `limit`. Returns `None` if the plug-in does not support this function.
    ///
    /// # Errors
    /// Any error. `InvalidArgument` and `Unsupported` have the same meaning as for `submit`.
    fn run(&self, task: &PluginTask<'_>, limit: Duration) -> Option<Result<RunOutcome>>;

    /// Checks without a wait whether an operation is complete. Returns `None` if it is not
    /// complete.
    ///
    /// # Errors
    /// The error of the operation.
    fn test(&self, request: PluginRequest) -> Result<Option<PluginMessageStatus>>;

    /// Waits until an operation is complete. Returns `None` if the limit has passed or the group
    /// has failed before that.
    ///
    /// # Errors
    /// The error of the operation.
    fn wait(&self, request: PluginRequest, limit: Duration) -> Result<Option<PluginMessageStatus>>;

    /// Releases an operation that is not complete. After a successful call, the plug-in does not
    /// use the buffers of the operation any more.
    ///
    /// # Errors
    /// Any error. It means that the plug-in may still use the buffers.
    fn release(&self, request: PluginRequest) -> Result<ReleaseReport>;

    /// Aborts the communicator after a failure of the group. Every wait must end, if possible also
    /// on other ranks.
    fn abort(&self, reason: &Error);

    /// Returns the reason why the plug-in cannot continue, if it cannot.
    fn failure(&self) -> Option<Error>;

    /// Checks whether the plug-in supports this kind of call. The plug-in has the operation, but
    /// may not support the type, the operator or the memory.
    ///
    /// # Errors
    /// `Unsupported`.
    fn supports(&self, query: &SupportQuery) -> Result<()>;

    /// Allocates memory for buffers. Returns `None` if the plug-in has no allocator.
    ///
    /// # Errors
    /// `OutOfMemory`, or an error of the plug-in.
    fn allocate(&self, bytes: usize) -> Result<Option<Box<dyn BackendMemory>>>;

    /// Returns the plug-in's details for `dist_group_describe`.
    fn describe(&self) -> Value;
}

crate::base::trait_object_debug::impl_debug_of_objects!(Communicator);

/// The reason why a released operation did not complete, as far as the plug-in knows it.
#[derive(Clone, Debug, Default)]
pub struct ReleaseReport {
    /// The description. It may be empty.
    pub text: String,
    /// The rank that is late, if the plug-in knows it.
    pub culprit: Option<Rank>,
}

impl ReleaseReport {
    /// Returns the error that ended the operation, with the text and the culprit of this report
    /// added.
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

/// Returns an error of the same kind as `error`, with this message and this culprit.
pub(super) fn replace_message(error: &Error, message: String, culprit: Option<Rank>) -> Error {
    let replaced = Error::new(error.kind(), message);
    match culprit {
        Some(culprit) => replaced.with_culprit(culprit),
        None => replaced,
    }
}
