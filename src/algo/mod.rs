//! Collective algorithms: one file each with its row, and one table that lists the rows.
//!
//! [`shared`] holds those for the ranks of one node, written over `SharedDomain`; [`message`] those
//! for ranks that share nothing, over `Endpoint`; [`hierarchical`] those for several nodes of
//! several ranks, made of the other two. [`pattern`] is the arithmetic that they have in common.
//!
//! Must not know: concrete transports, stores, system calls, back ends.

pub mod arrival_skew;
pub mod call_arguments;
mod count_mismatch;
mod fingerprint;
pub mod fold;
pub mod hierarchical;
pub mod message;
pub mod operation;
pub mod pattern;
pub mod rules;
pub mod select;
pub mod shared;
pub mod table;

pub use call_arguments::CallArguments;
pub use operation::Operation;
pub use select::{AlgorithmChoice, AlgorithmRequest, GroupShape, select};
pub use table::{Algorithm, AlgorithmBody, EAGER_BYTES, algorithms};
