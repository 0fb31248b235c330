//! Process groups: their creation and state, their observers, their keys in the store, their
//! memory, the propagation of aborts, and the comparison of the calls of all ranks.

mod abort_propagation;
pub mod activity;
pub(in crate::api) mod call_comparison;
mod call_record;
pub mod capabilities;
pub mod create;
mod extensions;
mod failure;
pub(in crate::api) mod group_keys;
pub(in crate::api) mod group_observer;
pub mod memory;
pub mod process_group;
