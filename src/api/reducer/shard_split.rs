//! The assignment of elements to ranks, a pure function of a layout and the number of ranks.
//!
//! Every bucket is split evenly over the ranks. The remaining elements are assigned to the ranks in
//! turn, and the turn continues in the next bucket. Over all buckets, the numbers of elements of
//! two ranks therefore differ by at most one. For example, two buckets of 5 elements each are split
//! over 4 ranks like this:
//!
//! | bucket | rank 0 | rank 1 | rank 2 | rank 3 |
//! |---|---|---|---|---|
//! | 0 | 2 | 1 | 1 | 1 |
//! | 1 | 1 | 2 | 1 | 1 |
//!  Elements are addressed by parameter and offset, without padding.

use super::layout::{BucketLayout, BucketSpec};
use super::param::Param;
use crate::base::buffer::Dst;
use std::ops::Range;

/// A layout that is split over a number of ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ShardSplit {
    pub(super) ranks: usize,
    /// For each bucket, the index of the first element of each rank's part, and at the end the
    /// number of elements in the bucket. Gaps between gradients are not counted.
    bounds: Vec<Vec<usize>>,
}

/// Elements of one parameter in one bucket that belong to one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SplitPiece {
    pub(super) param: usize,
    /// The index of the first element in the parameter.
    pub(super) begin: usize,
    pub(super) count: usize,
    pub(super) bucket: usize,
    /// The offset of the first element's gradient in the bucket, in bytes.
    pub(super) at: usize,
}

impl SplitPiece {
    /// Returns the values of the piece's elements.
    pub(super) fn values(&self, params: &[Param]) -> Dst<'static> {
        let size = params[self.param].dtype.size();
        params[self.param].data.slice(self.begin * size, self.count * size)
    }

    /// Returns the range of elements in the parameter.
    pub(super) fn range(&self) -> Range<usize> {
        self.begin..self.begin + self.count
    }
}

/// Returns how many of `elements` elements a rank gets if the ranks take one element each in turn.
fn round_robin_share(elements: usize, rank: usize, ranks: usize) -> usize {
    elements / ranks + usize::from(rank < elements % ranks)
}

fn elements(spec: &BucketSpec) -> usize {
    spec.lengths.iter().sum::<usize>() / spec.dtype.size()
}

/// Returns the offset of an element in a bucket, in bytes. For the index after the last element,
/// this is the end of the bucket.
fn byte_of(spec: &BucketSpec, element: usize) -> usize {
    let mut first = 0;
    for (&offset, &len) in spec.offsets.iter().zip(&spec.lengths) {
        let count = len / spec.dtype.size();
        if element < first + count {
            return offset + (element - first) * spec.dtype.size();
        }
        first += count;
    }
    spec.bytes
}

impl ShardSplit {
    pub(super) fn of(layout: &BucketLayout, ranks: usize) -> Self {
        let mut before = 0;
        let bounds = layout.buckets.iter().map(|spec| {
            let after = before + elements(spec);
            let mut bounds = vec![0];
            for rank in 0..ranks {
                let share =
                    round_robin_share(after, rank, ranks) - round_robin_share(before, rank, ranks);
                bounds.push(bounds[rank] + share);
            }
            before = after;
            bounds
        });
        Self { ranks, bounds: bounds.collect() }
    }

    /// Returns the range of bytes in a bucket's memory that belongs to a rank, including gaps.
    pub(super) fn block(&self, layout: &BucketLayout, bucket: usize, rank: usize) -> Range<usize> {
        let (spec, bounds) = (&layout.buckets[bucket], &self.bounds[bucket]);
        byte_of(spec, bounds[rank])..byte_of(spec, bounds[rank + 1])
    }

    /// Returns the pieces of a rank in a bucket, in the order of their gradients.
    pub(super) fn bucket_pieces(
        &self,
        layout: &BucketLayout,
        bucket: usize,
        rank: usize,
    ) -> Vec<SplitPiece> {
        let (spec, bounds) = (&layout.buckets[bucket], &self.bounds[bucket]);
        let (from, to) = (bounds[rank], bounds[rank + 1]);
        let mut pieces = Vec::new();
        let mut first = 0;
        for (position, &param) in spec.params.iter().enumerate() {
            let end = first + spec.lengths[position] / spec.dtype.size();
            let begin = from.max(first);
            if begin < to.min(end) {
                let at = spec.offsets[position] + (begin - first) * spec.dtype.size();
                let count = to.min(end) - begin;
                pieces.push(SplitPiece { param, begin: begin - first, count, bucket, at });
            }
            first = end;
        }
        pieces
    }

    /// Returns the pieces of a rank in all buckets.
    pub(super) fn pieces(&self, layout: &BucketLayout, rank: usize) -> Vec<SplitPiece> {
        let buckets = 0..layout.buckets.len();
        buckets.flat_map(|bucket| self.bucket_pieces(layout, bucket, rank)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::BucketLimits;
    use super::super::param::tests::param;
    use super::*;

    fn layout(counts: &[usize], limit: usize) -> BucketLayout {
        let params: Vec<Param> =
            counts.iter().enumerate().map(|(i, &count)| param(&format!("p{i}"), count)).collect();
        BucketLayout::reversed(&params, BucketLimits { first: limit, rest: limit })
    }

    #[test]
    fn every_element_belongs_to_one_rank_and_shares_are_even() {
        for (counts, limit) in [
            (vec![1; 20], 1),
            (vec![5, 0, 17, 1000, 3], 64),
            (vec![7, 7, 7], 1 << 20),
            (vec![2], 4),
            (vec![], 4),
        ] {
            let layout = layout(&counts, limit);
            for ranks in 1..7 {
                let split = ShardSplit::of(&layout, ranks);
                let mut owners: Vec<Vec<usize>> =
                    counts.iter().map(|&count| vec![0; count]).collect();
                let mut sizes = Vec::new();
                for rank in 0..ranks {
                    let pieces = split.pieces(&layout, rank);
                    sizes.push(pieces.iter().map(|piece| piece.count).sum::<usize>());
                    pieces.iter().for_each(|piece| {
                        owners[piece.param][piece.range()].iter_mut().for_each(|n| *n += 1);
                    });
                }
                assert!(owners.iter().flatten().all(|&owners| owners == 1));
                let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
                assert!(most - least <= 1, "{sizes:?}");
            }
        }
    }

    #[test]
    fn blocks_cover_a_bucket_and_have_the_pieces() {
        let layout = layout(&[5, 17, 100, 3], 1 << 20);
        for ranks in 1..5 {
            let split = ShardSplit::of(&layout, ranks);
            let mut end = 0;
            for rank in 0..ranks {
                let block = split.block(&layout, 0, rank);
                assert_eq!(block.start, end);
                end = block.end;
                for piece in split.bucket_pieces(&layout, 0, rank) {
                    assert!(piece.at >= block.start && piece.at + 4 * piece.count <= block.end);
                }
            }
            assert_eq!(end, layout.buckets[0].bytes);
        }
    }
}
