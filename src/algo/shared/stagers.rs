//! Stagers for one operation. A stager ([`Stager`]) copies data to a data slot. It first measures
//! how far away the cache lines of the slot are, and chooses its store instructions by that
//! distance.

use crate::algo::fold::MAX_STACK_RANKS;
use crate::base::ids::Rank;
use crate::kernel::Stager;

/// One stager for each rank that reads from this rank's data slots. The distance depends on the
/// core of the rank that read the part of the slot last. With more than `MAX_STACK_RANKS` ranks,
/// several ranks share one stager.
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
