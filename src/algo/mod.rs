//! Collective algorithms: one file each, and one table that lists them.
//!
//! [`shared`] holds those for the ranks of one host, written over `SharedDomain`; algorithms over
//! messages and between hosts will stand beside it as `message` and `hierarchical`. [`pattern`] is
//! the arithmetic they have in common.
//!
//! Must not know: concrete transports, stores, system calls, back ends.

pub mod operation;
pub mod pattern;
pub mod select;
pub mod shared;

pub use operation::Operation;
pub use select::{Algorithm, Shape, algorithms, select};
