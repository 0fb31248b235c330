//! New descriptors above the standard streams. This file re-exports a function of `sys` for the
//! layers that must not import `sys`.

pub use crate::sys::descriptor::above_standard_streams;
