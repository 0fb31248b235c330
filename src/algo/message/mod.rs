//! Algorithms over messages, for ranks that share no memory.
//!
//! [`exchange`] is the protocol, [`peer_history`] what a rank remembers of it between operations;
//! the rest is a folder per collective and a file per algorithm. Every algorithm works on a
//! [`Team`]: some ranks of the group, in an order that all of them know. In its file `run` is the
//! whole operation, for all ranks of a group, and `among` what hierarchical operations use too,
//! between a few ranks of several nodes.
//!
//! Results are the same bits on all members: either one member folds a piece and the others get a
//! copy, or all fold the same values in the same order, that of the team.

/// Everybody's block to everybody.
pub mod all_gather {
    pub mod bruck;
    pub mod ring;
}
pub mod all_reduce;
/// To everybody what each has for it.
pub mod all_to_all {
    pub mod bruck;
    pub mod pairwise;
}
/// Nobody leaves before all have come.
pub mod barrier {
    pub mod dissemination;
}
pub mod broadcast;
pub mod exchange;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod mismatch;
/// Everybody's block to the root.
pub mod gather {
    pub mod binomial;
    pub mod linear;
}
pub mod peer_history;
/// The fold of all vectors to the root.
pub mod reduce {
    pub mod binomial;
    pub mod ordered;
    pub mod reduce_scatter_gather;
}
mod presence;
pub mod reduce_scatter;
pub mod scan;
mod segmented_ring;
/// The root's blocks, one to each.
pub mod scatter {
    pub mod binomial;
    pub mod linear;
}

pub use exchange::{MessageExchange, MessageOperation, MessageToken};
pub use peer_history::PeerHistory;

use crate::base::error::{Error, Result};
use crate::base::ids::{Rank, WorldSize};

/// How many stripes of messages may be posted before some must have gone or come.
pub(super) const MAX_POSTED_STRIPES: usize = 16;

/// The largest piece of a vector that is sent, folded and kept at a time.
pub(super) const SEGMENT_BYTES: usize = 256 << 10;

/// The members of one algorithm's run, and which of them this rank is.
#[derive(Clone, Copy, Debug)]
pub struct Team<'a> {
    members: &'a [Rank],
    own_position: usize,
}

impl<'a> Team<'a> {
    /// The team of `members`, seen from `rank`.
    ///
    /// # Errors
    /// `Internal` where the rank is not one of them.
    pub fn of(members: &'a [Rank], rank: Rank) -> Result<Self> {
        let me = members.iter().position(|&member| member == rank);
        let me = me.ok_or_else(|| Error::internal("a rank outside of its own team"))?;
        Ok(Self { members, own_position: me })
    }

    /// The number of members.
    pub fn size(self) -> WorldSize {
        self.members.len()
    }

    /// The position of this rank.
    pub fn own_position(self) -> usize {
        self.own_position
    }

    /// The rank, in the group, of the member at a position.
    pub fn rank(self, position: usize) -> Rank {
        self.members[position]
    }

    /// All members, in order.
    pub fn members(self) -> &'a [Rank] {
        self.members
    }
}
