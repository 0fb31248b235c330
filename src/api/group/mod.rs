//! Process groups: their state, observers, keys and memory, and the spread of an abort.

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
