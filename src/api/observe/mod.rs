//! Observation of operations: flight recorder, trace, stragglers, debug checks, error files.

pub(in crate::api) mod debug;
pub(in crate::api) mod error_file;
pub mod recorder;
pub(in crate::api) mod straggler;
pub mod trace;
