//! Back ends that others have written, behind a few functions: submit an operation, look at it,
//! wait for it, take it back.
//!
//! [`Plugin`] and [`Communicator`] are those functions as Rust sees them; whoever speaks the C
//! interface implements them. Here is what the library adds, the same for every plug-in: who is
//! where ([`bootstrap`]), one operation after another with its deadline, the group's failure
//! ([`group`], [`failure_state`]), messages that are looked after while nobody waits
//! ([`messages`]), the device that is current in calls ([`device_current`]), and operations that a
//! plug-in lacks made of those that it has ([`compose`]).
//!
//! Nothing is taken for granted of a plug-in: what it returns is checked, and what it does not
//! return from in time is told.
//!
//! Must not know: C types, how a plug-in came into the process, other back ends.

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

/// A back end that others have written.
pub trait Plugin: Send + Sync + Debug {
    /// Makes this rank's part of a group, which all its ranks do at once. `failure_state` is where
    /// the group's failure will be.
    ///
    /// # Errors
    /// Whatever keeps it from being made.
    fn create(
        &self,
        context: &GroupContext<'_>,
        exchange: &dyn BootstrapExchange,
        state: &Arc<PluginFailureState>,
    ) -> Result<CreatedCommunicator>;
}

/// What a plug-in has made for a group.
#[derive(Debug)]
pub struct CreatedCommunicator {
    /// Its functions for this group.
    pub communicator: Arc<dyn Communicator>,
    /// Which operations it has.
    pub kinds: OperationKinds,
    /// It takes the memory of the group's device too, in the calls that it says.
    pub serves_device: bool,
}

/// Which operations a plug-in has by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationKinds(u64);

impl OperationKinds {
    /// The bit of messages between two ranks; the others are those of collectives, by their number.
    const MESSAGES: u32 = 32;

    /// Those whose bits are set; all of them for 0.
    ///
    /// # Errors
    /// `InvalidArgument` for a bit that means nothing.
    pub fn from_bits(bits: u64) -> Result<Self> {
        let all = OpKind::ALL.iter().fold(1 << Self::MESSAGES, |all, &kind| all | 1 << kind as u32);
        match bits {
            0 => Ok(Self(all)),
            _ if bits & !all == 0 => Ok(Self(bits)),
            _ => {
                let message = format!("kinds {bits:#x} has bits that stand for no operation");
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

/// A plug-in's part in one group.
///
/// Obligations of the library: collectives are submitted by one thread at a time, in the order that
/// all ranks have; at the same time other threads may submit, test and release messages, and abort.
/// A request is used by one thread at a time, and not any more once it has ended (by a result or an
/// error of `test` or `wait`) or been released.
pub trait Communicator: Send + Sync + Debug {
    /// Begins an operation, and does not wait for other ranks.
    ///
    /// # Errors
    /// Any. `InvalidArgument` and `Unsupported` mean that nothing has happened, as on every other
    /// rank.
    fn submit(&self, task: &PluginTask<'_>) -> Result<SubmitOutcome>;

    /// Whether the plug-in has [`Communicator::run`], and a call of it needs nothing that takes
    /// time before.
    fn has_fast_path(&self) -> bool;

    /// Carries out a collective in one step, where the plug-in has that: begins it and waits for
    /// its end, but not for longer than the limit.
    ///
    /// # Errors
    /// Any. `InvalidArgument` and `Unsupported` as for `submit`.
    fn run(&self, task: &PluginTask<'_>, limit: Duration) -> Option<Result<RunOutcome>>;

    /// Whether an operation has ended, without waiting.
    ///
    /// # Errors
    /// What it has ended with.
    fn test(&self, request: PluginRequest) -> Result<Option<PluginMessageStatus>>;

    /// Waits until an operation has ended, but not for long: `Unavailable` once the limit has
    /// passed or the group has failed.
    ///
    /// # Errors
    /// What it has ended with.
    fn wait(&self, request: PluginRequest, limit: Duration) -> Result<Option<PluginMessageStatus>>;

    /// Takes back an operation that has not ended. Its memory is the caller's again.
    ///
    /// # Errors
    /// The plug-in cannot promise that.
    fn release(&self, request: PluginRequest) -> Result<ReleaseReport>;

    /// The group has failed: every wait is to end, also on other ranks where that is possible.
    fn abort(&self, reason: &Error);

    /// Why the plug-in cannot go on, if so.
    fn failure(&self) -> Option<Error>;

    /// Whether it does this kind of call, of which it has the operation.
    ///
    /// # Errors
    /// `Unsupported`.
    fn supports(&self, query: &SupportQuery) -> Result<()>;

    /// Memory for buffers; `Unavailable` where it has none of its own.
    ///
    /// # Errors
    /// `OutOfMemory`, or whatever it says.
    fn allocate(&self, bytes: usize) -> Result<Option<Box<dyn super::BackendMemory>>>;

    /// What it has to say of itself.
    fn describe(&self) -> Value;
}

/// What an operation that was taken back had waited for, as far as the plug-in knows.
#[derive(Clone, Debug, Default)]
pub struct ReleaseReport {
    /// In words; may be empty.
    pub text: String,
    /// The rank that is late.
    pub culprit: Option<Rank>,
}

impl ReleaseReport {
    /// Adds that to an error that has ended the operation.
    fn annotate(self, error: Error) -> Error {
        let annotated = match self.text.as_str() {
            "" => error.clone(),
            words => Error::new(error.kind(), format!("{error}: {words}")),
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

/// Adds a plug-in to the back ends that there are; `allocate` gets its name as it will be told.
///
/// # Errors
/// As [`registry::register`].
pub fn register(
    name: &str,
    make: impl FnOnce(&'static str) -> Arc<dyn Plugin>,
) -> Result<&'static str> {
    registry::register(name, |name| Arc::new(RegisteredPlugin { name, plugin: make(name) }))
}
