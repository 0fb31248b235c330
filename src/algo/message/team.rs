//! The ranks that take part in one run of an algorithm over messages, and the limits of the
//! messages in flight.

use crate::base::error::{Error, Result};
use crate::base::ids::{Rank, WorldSize};

/// The maximum number of posted stripes (pieces of messages, one per stream). If more stripes are
/// posted, an algorithm waits until some of them are complete.
pub(in crate::algo) const MAX_POSTED_STRIPES: usize = 16;

/// The size in bytes of a segment: the largest piece of a vector that a member sends, folds and
/// keeps at a time.
pub(in crate::algo) const SEGMENT_BYTES: usize = 256 << 10;

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
