//! Debug checks of operations: arrival of all ranks ([`arrival_check`]), NaN in buffers
//! ([`nan_check`]), and conflicting buffer uses ([`in_flight_buffers`]).
//!
//! If the checks are off, an operation pays only for reading the settings. A finding that the other
//! ranks cannot detect fails the group with the reason, so that no rank waits for a rank that has
//! stopped.

mod arrival_check;
pub(in crate::api) mod in_flight_buffers;
mod nan_check;
