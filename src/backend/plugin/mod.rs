//! Plug-ins: back ends that other libraries implement. A plug-in provides a few functions, mainly
//! to submit an operation, test it, wait for it and release it.
//!
//! [`Plugin`] and [`Communicator`] are these functions as Rust traits. The adapter of the C
//! interface implements the traits. This module adds the parts that are the same for every plug-in:
//!
//! - the bootstrap and the rank locations ([`bootstrap`]);
//! - the execution of operations one after another, each with its deadline, and the failure of the
//!   group ([`group`], [`failure_state`]);
//! - point-to-point messages that make progress even if no thread waits for them ([`messages`]);
//! - the current device during calls of the plug-in ([`device_current`]);
//! - the composition of operations that the plug-in does not have from operations that it has
//!   ([`composition_table`], [`compose`]).
//!
//! The library does not trust a plug-in. It validates returned values, and it reports calls that do
//! not return in time.
//!
//! This module does not depend on C types, on the loading of plug-ins, or on other back ends.

mod bootstrap;
mod communicator;
mod compose;
mod composition_table;
mod device_current;
mod failure_state;
mod group;
mod messages;
mod registration;
mod task;

pub use bootstrap::Plugin;
pub(super) use bootstrap::create_group;
pub use communicator::{Communicator, CreatedCommunicator, OperationKinds, ReleaseReport};
pub use failure_state::PluginFailureState;
pub(super) use group::PluginGroup;
pub use registration::register;
pub use task::{
    GrowableBuffer, PluginMessageStatus, PluginRequest, PluginTask, RunOutcome, SubmitOutcome,
    TaskKind,
};
