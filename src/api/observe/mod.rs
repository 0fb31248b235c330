//! Observation of operations: the flight recorder (the list of the last operations), traces, the
//! detection of stragglers (late ranks), the search for deadlocks, debug checks, and the error file
//! for launchers.

pub(in crate::api) mod call_history;
pub(in crate::api) mod deadlock;
pub(in crate::api) mod debug;
pub(in crate::api) mod error_file;
pub(in crate::api) mod operation_details;
pub mod recorder;
pub(in crate::api) mod straggler;
pub mod trace;
