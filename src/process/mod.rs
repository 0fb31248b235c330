//! Processes.
pub mod this;
