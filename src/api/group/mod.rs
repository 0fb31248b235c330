//! Process groups: their creation and state, their observers, their keys in the store, their
//! memory, and the propagation of aborts.

mod abort_propagation;
pub mod activity;
pub mod capabilities;
pub mod create;
mod extensions;
mod failure;
pub(in crate::api) mod group_keys;
pub(in crate::api) mod group_observer;
pub mod memory;
pub mod process_group;
