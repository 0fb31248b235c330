//! Collective algorithms: one file per algorithm, which contains its row, and one table that lists
//! the rows.
//!
//! [`shared`] contains the algorithms for the ranks of one node, over `SharedDomain`. [`message`]
//! contains those for ranks without shared memory, over `Endpoint`. [`hierarchical`] contains those
//! for several nodes with several ranks, built from the other two. [`pattern`] is the arithmetic
//! that they have in common.
//!
//! This module does not depend on concrete transports, stores, system calls or back ends.

pub mod arrival_skew;
pub mod call_arguments;
pub mod fast_path;
mod fingerprint;
pub mod fold;
pub mod group_state;
pub mod hierarchical;
pub mod message;
mod mismatch_text;
pub mod operation;
pub mod pattern;
pub mod row;
pub mod rules;
pub mod select;
pub mod shared;
pub mod table;

pub use call_arguments::CallArguments;
pub use operation::{AlgorithmRequest, EAGER_BYTES, Operation};
pub use row::{Algorithm, AlgorithmBody, GroupShape};
pub use select::{AlgorithmChoice, select};
pub use table::algorithms;
