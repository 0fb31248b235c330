//! Collective algorithms: one file each with its row, and one table that lists the rows.
//!
//! [`shared`] holds those for the ranks of one node, written over `SharedDomain`; [`message`] those
//! for ranks that share nothing, over `Endpoint`; [`hierarchical`] those for several nodes of
//! several ranks, made of the other two. [`pattern`] is the arithmetic that they have in common.
//!
//! Must not know: concrete transports, stores, system calls, back ends.

mod conflict;
mod fingerprint;
pub mod fold;
pub mod hierarchical;
pub mod lateness;
pub mod message;
pub mod operation;
pub mod pattern;
pub mod plain;
pub mod rules;
pub mod select;
pub mod shared;
pub mod table;

pub use operation::Operation;
pub use plain::Plain;
pub use select::{Choice, Shape, Wanted, select};
pub use table::{Algorithm, Body, SHORT_BYTES, algorithms};
