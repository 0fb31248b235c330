//! What is known of how far away the other ranks' cores are, during one operation.

use crate::algo::fold::MAX_STACK_RANKS;
use crate::base::ids::Rank;
use crate::kernel::Stager;

/// One for each rank that has a part of the slots of its own; of many ranks, several share one.
#[derive(Debug)]
pub struct RankStagers([Stager; MAX_STACK_RANKS]);

impl RankStagers {
    /// For so many bytes to each.
    pub fn of(bytes_per_rank: usize) -> Self {
        Self([Stager::for_total(bytes_per_rank); MAX_STACK_RANKS])
    }

    /// The one for what a rank reads.
    pub fn stager_for(&mut self, rank: Rank) -> &mut Stager {
        &mut self.0[rank % MAX_STACK_RANKS]
    }
}
