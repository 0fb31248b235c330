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
//! - the composition of missing operations from available ones ([`composition_table`],
//!   [`compose`]).
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
mod task;

pub use bootstrap::{Plugin, register};
pub use communicator::{Communicator, CreatedCommunicator, OperationKinds, ReleaseReport};
pub use failure_state::PluginFailureState;
pub use task::{
    GrowableBuffer, PluginMessageStatus, PluginRequest, PluginTask, RunOutcome, SubmitOutcome,
    TaskKind,
};
