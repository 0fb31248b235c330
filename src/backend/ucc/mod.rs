//! The back end `ucc`, over the Unified Collective Communication library, which is loaded at run
//! time. The build needs nothing of UCC.
//!
//! - [`library`] loads UCC, with the declarations of [`functions`]; [`types`] maps element types
//!   and operators, and [`operators`] has the reductions that UCC lacks.
//! - [`context`] has the context that the groups of the process share, and the right to call UCC.
//! - [`team`] creates the team of a group over the group's own exchange ([`exchange`]), and runs
//!   its collectives, whose arguments [`call`] sets. [`liveness`] decides whether UCC may be
//!   called.
//! - [`communicator`] is UCC in the frame for plug-ins, and [`backend`] joins it with a native
//!   group of the same ranks, which detects failures.
#![allow(unsafe_code, reason = "calls the functions of UCC")]

mod backend;
mod call;
mod communicator;
mod context;
mod exchange;
mod functions;
#[cfg(test)]
mod layout_tests;
pub mod library;
mod liveness;
mod operators;
mod team;
mod types;

pub(super) use backend::{NAME, UccFactory};
pub use functions::function_names;
pub use types::check_support;
