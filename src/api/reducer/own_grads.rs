//! The reduced gradients of a rank's own elements, in a reducer that scatters its buckets: each
//! rank gets only the sums of the elements that [`ShardSplit`] assigns to it.

use super::layout::BucketLayout;
use super::memory::GradBlock;
use super::shard_split::{ShardSplit, SplitPiece};
use crate::api::group::process_group::Group;
use crate::base::buffer::{Dst, Src};
use crate::base::error::Result;
use std::sync::Arc;

/// The memory for this rank's part of each bucket.
#[derive(Debug)]
pub(super) struct OwnGrads {
    split: ShardSplit,
    rank: usize,
    blocks: Vec<GradBlock>,
}

impl OwnGrads {
    /// # Errors
    /// `OutOfMemory`, `System`.
    pub(super) fn new(group: &Group, layout: &BucketLayout) -> Result<Arc<Self>> {
        let (split, rank) = (ShardSplit::of(layout, group.size()), group.rank());
        let blocks = (0..layout.buckets.len())
            .map(|bucket| GradBlock::new(group, split.block(layout, bucket, rank).len(), None))
            .collect::<Result<_>>()?;
        Ok(Arc::new(Self { split, rank, blocks }))
    }

    /// Returns, for each rank, its part of a bucket's gradients, which are in `memory`.
    pub(super) fn sends(
        &self,
        layout: &BucketLayout,
        bucket: usize,
        memory: Dst<'static>,
    ) -> Vec<Src<'static>> {
        let block = |rank| {
            let range = self.split.block(layout, bucket, rank);
            memory.as_src().slice(range.start, range.len())
        };
        (0..self.split.ranks).map(block).collect()
    }

    /// Returns the memory for this rank's part of a bucket.
    pub(super) fn recv(&self, bucket: usize) -> Dst<'static> {
        self.blocks[bucket].view()
    }

    /// Returns the pieces that this rank owns.
    pub(super) fn pieces(&self, layout: &BucketLayout) -> Vec<SplitPiece> {
        self.split.pieces(layout, self.rank)
    }

    /// Returns the reduced gradient of a piece that this rank owns.
    pub(super) fn grad(&self, layout: &BucketLayout, piece: &SplitPiece) -> Dst<'static> {
        let begin = self.split.block(layout, piece.bucket, self.rank).start;
        let size = layout.buckets[piece.bucket].dtype.size();
        self.blocks[piece.bucket].view().slice(piece.at - begin, piece.count * size)
    }

    /// Returns the size of all memory in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.blocks.iter().map(|block| block.view().len()).sum()
    }
}
