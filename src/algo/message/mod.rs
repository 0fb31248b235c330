//! Algorithms over messages, for ranks that share no memory.
//!
//! [`exchange`] is the protocol, [`lane`] what a rank remembers of it between operations; the rest is one
//! file per collective, and per algorithm where there are several. Every algorithm works on a [`Team`]: some
//! ranks of the group, in an order that all of them know; so the same ones serve whole groups and, between
//! the nodes of hierarchical operations, a few ranks each.
//!
//! Results are the same bits on all members: either one member folds a piece and the others get a copy, or
//! all fold the same values in the same order, that of the team.

pub mod all_gather;
pub mod all_reduce;
pub mod barrier;
pub mod broadcast;
pub mod exchange;
pub mod flat;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod lane;
pub mod reduce;
pub mod reduce_scatter;
mod ring;
mod roll;

pub use exchange::{Call, Exchange, Token};
pub use lane::Lane;

use crate::base::error::{Error, Result};
use crate::base::ids::{Rank, WorldSize};

/// The largest piece of a vector that is sent, folded and kept at a time.
pub(super) const SEGMENT: usize = 256 << 10;

/// The members of one algorithm's run, and which of them this rank is.
#[derive(Clone, Copy, Debug)]
pub struct Team<'a> {
    members: &'a [Rank],
    me: usize,
}

impl<'a> Team<'a> {
    /// The team of `members`, seen from `rank`.
    ///
    /// # Errors
    /// `Internal` where the rank is not one of them.
    pub fn of(members: &'a [Rank], rank: Rank) -> Result<Self> {
        let me = members.iter().position(|&member| member == rank);
        let me = me.ok_or_else(|| Error::internal("a rank outside of its own team"))?;
        Ok(Self { members, me })
    }

    /// The number of members.
    pub fn size(self) -> WorldSize {
        self.members.len()
    }

    /// The position of this rank.
    pub fn me(self) -> usize {
        self.me
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
