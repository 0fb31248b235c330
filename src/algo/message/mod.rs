//! Algorithms over messages, for ranks without shared memory.
//!
//! [`exchange`] contains the protocol, and [`peer_history`] the state that a rank keeps between
//! operations. The other modules are one folder per collective, with one file per algorithm. Every
//! algorithm works on a [`Team`]: some ranks of the group, in an order that all of them know. In
//! each file, `run` is the whole operation between all ranks of a group. `run_team` is the
//! algorithm within a team, which hierarchical operations also use between ranks of several nodes.
//!
//! Results are bitwise equal on all members: either one member folds a piece and the others receive
//! a copy, or all members fold the same values in the order of the team.

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
/// Reduce: the root receives the fold of all vectors.
pub mod reduce {
    pub mod binomial;
    pub mod ordered;
    pub mod reduce_scatter_gather;
}
mod presence;
pub mod reduce_scatter;
pub mod scan;
mod segmented_ring;
/// Scatter: each rank receives one block of the root.
pub mod scatter {
    pub mod binomial;
    pub mod linear;
}

pub use exchange::{MessageExchange, MessageOperation, MessageToken};
pub use peer_history::PeerHistory;

use crate::base::error::{Error, Result};
use crate::base::ids::{Rank, WorldSize};

/// The maximum number of posted stripes before an algorithm waits for some of them.
pub(super) const MAX_POSTED_STRIPES: usize = 16;

/// The largest piece of a vector that is sent, folded and kept at a time.
pub(super) const SEGMENT_BYTES: usize = 256 << 10;

/// The members of one run of an algorithm, and this rank's position among them.
#[derive(Clone, Copy, Debug)]
pub struct Team<'a> {
    members: &'a [Rank],
    own_position: usize,
}

impl<'a> Team<'a> {
    /// Returns the team of `members`, with the position of `rank`.
    ///
    /// # Errors
    /// `Internal` if the rank is not a member.
    pub fn of(members: &'a [Rank], rank: Rank) -> Result<Self> {
        let me = members.iter().position(|&member| member == rank);
        let me = me.ok_or_else(|| Error::internal("the rank is not a member of its team"))?;
        Ok(Self { members, own_position: me })
    }

    /// Returns the number of members.
    pub fn size(self) -> WorldSize {
        self.members.len()
    }

    /// Returns the position of this rank.
    pub fn own_position(self) -> usize {
        self.own_position
    }

    /// Returns the rank, in the group, of the member at a position.
    pub fn rank(self, position: usize) -> Rank {
        self.members[position]
    }

    /// Returns all members, in order.
    pub fn members(self) -> &'a [Rank] {
        self.members
    }
}
