//! Algorithms over messages, for ranks without shared memory.
//!
//! [`exchange`] contains the protocol, and [`peer_history`] contains the state that a rank keeps
//! between operations. The other modules are one folder per collective, with one file per
//! algorithm.
//!
//! Every algorithm runs within a [`Team`]: some ranks of the group, in an order that all of them
//! know. In each file, `run` is the whole operation between all ranks of a group. `run_team` is the
//! algorithm within any team; hierarchical operations use it between ranks of several nodes.
//!
//! Results are bitwise equal on all members. For each piece of the result, there are two cases.
//! Either one member folds the piece and the other members receive a copy, or all members fold the
//! same values in the order of the team.

/// All-gather: each rank receives the blocks of all ranks.
pub mod all_gather {
    pub mod bruck;
    pub mod ring;
}
pub mod all_reduce;
/// All-to-all: each rank receives one block from each rank.
pub mod all_to_all {
    pub mod bruck;
    pub mod pairwise;
}
/// Barrier: no rank leaves before all ranks have entered.
pub mod barrier {
    pub mod dissemination;
}
pub mod broadcast;
pub mod exchange;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod mismatch;
/// Gather: the root receives the blocks of all ranks.
pub mod gather {
    pub mod binomial;
    pub mod linear;
}
pub mod peer_history;
#[cfg(test)]
mod peer_history_tests;
/// Reduce: the root receives the fold of all vectors.
pub mod reduce {
    pub mod binomial;
    pub mod ordered;
    pub mod reduce_scatter_gather;
}
mod presence;
mod progress;
pub mod reduce_scatter;
pub mod scan;
mod segmented_ring;
mod team;
/// Scatter: each rank receives one block of the root.
pub mod scatter {
    pub mod binomial;
    pub mod linear;
}

pub use exchange::{MessageExchange, MessageOperation, MessageToken};
pub use peer_history::PeerHistory;
pub use team::Team;
pub(super) use team::{MAX_POSTED_STRIPES, SEGMENT_BYTES};
