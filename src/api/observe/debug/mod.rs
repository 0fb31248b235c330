//! Debug checks of operations: arrival of all ranks ([`arrival_check`]), NaN in buffers
//! ([`nan_check`]), and conflicting buffer uses ([`in_flight_buffers`]).
//!
//! If the checks are off, an operation pays only for reading the settings. If a check finds an
//! error that the other ranks cannot detect, it fails the group and gives the reason. Then no rank
//! waits for the rank that has stopped.

mod arrival_check;
pub(in crate::api) mod in_flight_buffers;
mod nan_check;
