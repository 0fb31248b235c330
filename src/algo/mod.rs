//! Collective algorithms. Each algorithm has one file. That file also contains the *row* of the
//! algorithm: its name, its conditions and its function. [`table`] lists all rows.
//!
//! - [`shared`] contains the algorithms for the ranks of one node. They use shared memory
//!   (`SharedDomain`).
//! - [`message`] contains the algorithms for ranks without shared memory. They use streams
//!   (`Endpoint`).
//! - [`hierarchical`] contains the algorithms for several nodes with several ranks each. They use
//!   shared memory within a node and streams between nodes.
//! - [`pattern`] contains the index arithmetic that the algorithms share.
//!
//! This module does not depend on concrete transports, stores, system calls or back ends.

pub mod arrival_skew;
mod awaited_report;
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
pub use fingerprint::ArgumentsHash;
pub use operation::{AlgorithmRequest, EAGER_BYTES, Operation};
pub use row::{Algorithm, AlgorithmBody, GroupShape};
pub use select::{AlgorithmChoice, select};
pub use table::algorithms;
