//! The elements that a rank updates in a group, with their states.

use super::super::array::Array;
use super::super::layout::BucketLayout;
use super::super::shard_split::{ShardSplit, SplitPiece};
use crate::api::group::process_group::Group;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// Options of a shard; see `dist_shard_options_t`.
#[derive(Clone, Debug)]
pub struct ShardOptions {
    /// The names of the optimizer's states.
    pub states: Vec<String>,
    /// The number of ranks that update each element.
    pub copies: usize,
    /// The deadline of each operation in milliseconds; 0 for the group's default, `u64::MAX` for no
    /// deadline.
    pub timeout_ms: u64,
}

/// For each parameter, the indices of the rank's pieces in [`LocalShard::pieces`].
pub(super) type PiecesByParam = HashMap<usize, Vec<usize>>;

/// The elements that this rank updates in a group, and their states.
#[derive(Debug)]
pub(super) struct LocalShard {
    group: Weak<Group>,
    pub(super) split: ShardSplit,
    pub(super) rank: usize,
    pub(super) pieces: Vec<ShardPiece>,
    /// The number of elements that this rank updates.
    pub(super) count: usize,
    /// The states, each with `count` elements.
    pub(super) states: Vec<Array<f32>>,
}

/// Elements that a rank updates: its own, or copies of another rank's elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShardPiece {
    pub(super) piece: SplitPiece,
    /// The rank that owns the elements.
    pub(super) owner: usize,
    /// The index of the first element in each state.
    pub(super) offset: usize,
}

/// Returns the ranks whose elements a rank updates: the rank itself, and `copies - 1` ranks before
/// it. For example, rank 0 of 4 ranks with 2 copies updates the elements of the ranks 0 and 3.
pub(super) fn updated_by(rank: usize, ranks: usize, copies: usize) -> impl Iterator<Item = usize> {
    (0..copies.min(ranks)).map(move |copy| (rank + ranks - copy) % ranks)
}

impl LocalShard {
    /// Creates the part of this rank, with states of zeros.
    pub(super) fn new(layout: &BucketLayout, group: &Arc<Group>, options: &ShardOptions) -> Self {
        let (rank, ranks) = (group.rank(), group.size());
        let split = ShardSplit::of(layout, ranks);
        let mut pieces = Vec::new();
        let mut count = 0;
        for owner in updated_by(rank, ranks, options.copies) {
            for piece in split.pieces(layout, owner) {
                pieces.push(ShardPiece { piece, owner, offset: count });
                count += piece.count;
            }
        }
        let states = options.states.iter().map(|_| Array::new(count)).collect();
        Self { group: Arc::downgrade(group), split, rank, pieces, count, states }
    }

    /// Returns the pieces that this rank owns.
    pub(super) fn own(&self) -> impl Iterator<Item = &ShardPiece> {
        self.pieces.iter().filter(|held| held.owner == self.rank)
    }

    /// Appends the states of a piece's elements to `bytes`.
    pub(super) fn write_states(&self, held: &ShardPiece, bytes: &mut Vec<u8>) {
        let range = held.offset..held.offset + held.piece.count;
        self.states.iter().for_each(|state| state.write_to(range.clone(), bytes));
    }

    pub(super) fn is_in(&self, group: &Arc<Group>) -> bool {
        std::ptr::eq(self.group.as_ptr(), Arc::as_ptr(group))
    }

    pub(super) fn by_param(&self) -> PiecesByParam {
        let mut map = PiecesByParam::new();
        for (index, held) in self.pieces.iter().enumerate() {
            map.entry(held.piece.param).or_default().push(index);
        }
        map
    }

    /// Sets one state of this rank's elements from `bytes`, which contains that state for all
    /// elements of `from`. Elements of `from` that this rank does not update are ignored.
    pub(super) fn take_state(
        &self,
        wanted: &PiecesByParam,
        state: usize,
        from: &SplitPiece,
        bytes: &[u8],
    ) {
        for &index in wanted.get(&from.param).into_iter().flatten() {
            let held = self.pieces[index];
            let begin = held.piece.begin.max(from.begin);
            let end = held.piece.range().end.min(from.range().end);
            if begin >= end {
                continue;
            }
            let size = size_of::<f32>();
            let part = &bytes[(begin - from.begin) * size..(end - from.begin) * size];
            self.states[state].read_from(held.offset + begin - held.piece.begin, part);
        }
    }
}
