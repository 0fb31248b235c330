//! What is known of how far away the other ranks' cores are, during one operation.

use crate::algo::fold::FEW;
use crate::base::ids::Rank;
use crate::kernel::Stager;

/// One for each rank that has a part of the slots of its own; of many ranks, several share one.
#[derive(Debug)]
pub struct Stagers([Stager; FEW]);

impl Stagers {
    /// For so many bytes to each.
    pub fn of(each: usize) -> Self {
        Self([Stager::of(each); FEW])
    }

    /// The one for what a rank reads.
    pub fn to(&mut self, rank: Rank) -> &mut Stager {
        &mut self.0[rank % FEW]
    }
}
