//! The probed cache distance of the other ranks' cores, during one operation.

use crate::algo::fold::MAX_STACK_RANKS;
use crate::base::ids::Rank;
use crate::kernel::Stager;

/// One stager per rank that reads its own part of this rank's data slots. With more than
/// `MAX_STACK_RANKS` ranks, several ranks share one stager.
#[derive(Debug)]
pub struct RankStagers([Stager; MAX_STACK_RANKS]);

impl RankStagers {
    /// Returns stagers for `bytes_per_rank` bytes to each rank.
    pub fn of(bytes_per_rank: usize) -> Self {
        Self([Stager::for_total(bytes_per_rank); MAX_STACK_RANKS])
    }

    /// Returns the stager for the data that `rank` reads.
    pub fn stager_for(&mut self, rank: Rank) -> &mut Stager {
        &mut self.0[rank % MAX_STACK_RANKS]
    }
}
