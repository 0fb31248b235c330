//! How an operation is cut: every block of it into pieces of one length, and one operation of the
//! same kind on the first pieces of all blocks, one on the second ones, and so on. So the results
//! are where they belong, whatever is done in place.
//!
//! Arithmetic only: nothing here touches memory.

use super::meet::GRAIN;
use crate::backend::{OpKind, Operation};
use crate::base::buffer::{Dst, Src};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{Rank, WorldSize};

/// The memory of one operation on this rank: a block for each rank, or one.
#[derive(Debug)]
pub(super) struct Blocks<'a> {
    pub(super) inputs: Vec<Src<'a>>,
    pub(super) outputs: Vec<Dst<'a>>,
}

/// The most blocks that a rank has in an operation, on either side.
fn widest(kind: OpKind, size: WorldSize) -> usize {
    match kind {
        OpKind::AllReduce
        | OpKind::Reduce
        | OpKind::Broadcast
        | OpKind::Barrier
        | OpKind::Scan
        | OpKind::Exscan => 1,
        _ => size,
    }
}

impl<'a> Blocks<'a> {
    pub(super) fn of(operation: &Operation<'a>, rank: Rank, size: WorldSize) -> Self {
        let is_root = operation.descriptor.root == Some(rank);
        let one_in = || vec![operation.send];
        let one_out = || vec![operation.recv];
        let all_in = || (0..size).map(|rank| operation.send_block(rank)).collect();
        let all_out = || (0..size).map(|rank| operation.recv_block(rank)).collect();
        let (inputs, outputs) = match operation.descriptor.kind {
            OpKind::AllReduce | OpKind::Scan => (one_in(), one_out()),
            // Rank 0 gets nothing.
            OpKind::Exscan if rank == 0 => (one_in(), vec![]),
            OpKind::Exscan => (one_in(), one_out()),
            OpKind::Reduce if is_root => (one_in(), one_out()),
            OpKind::Broadcast if is_root => (one_in(), vec![]),
            OpKind::Broadcast => (vec![], one_out()),
            OpKind::AllGather | OpKind::AllGatherV => (one_in(), all_out()),
            OpKind::Gather | OpKind::GatherV if is_root => (one_in(), all_out()),
            OpKind::Reduce | OpKind::Gather | OpKind::GatherV => (one_in(), vec![]),
            OpKind::Scatter | OpKind::ScatterV if is_root => (all_in(), one_out()),
            OpKind::Scatter | OpKind::ScatterV => (vec![], one_out()),
            OpKind::ReduceScatter | OpKind::ReduceScatterV => (all_in(), one_out()),
            OpKind::AllToAll | OpKind::AllToAllV => (all_in(), all_out()),
            OpKind::Barrier => (vec![], vec![]),
        };
        Self { inputs, outputs }
    }

    /// The longest.
    pub(super) fn longest(&self) -> usize {
        let inputs = self.inputs.iter().map(|block| block.len());
        inputs.chain(self.outputs.iter().map(|block| block.len())).max().unwrap_or(0)
    }
}

/// The pieces of an operation, the same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// The longest block of any rank.
    longest: usize,
    /// The length of a piece, but for the last of a block.
    piece: usize,
}

impl Plan {
    /// For blocks of at most `longest` bytes, with `chunk` bytes of staging memory on each side.
    pub(super) fn new(kind: OpKind, size: WorldSize, chunk: usize, longest: usize) -> Self {
        // Any type's elements are whole in it.
        let piece = chunk / widest(kind, size) / GRAIN * GRAIN;
        Self { longest, piece: piece.max(GRAIN) }
    }

    /// How many pieces the longest block has. Without any elements there is one operation all the
    /// same: it may find that ranks differ.
    pub(super) fn rounds(&self) -> usize {
        self.longest.div_ceil(self.piece).max(1)
    }

    /// The bytes of the longest block in a round, from 0.
    pub(super) fn width(&self, round: usize) -> usize {
        self.longest.saturating_sub(round * self.piece).min(self.piece)
    }

    /// Where a block of this length has its piece of a round, and how long that is.
    pub(super) fn cut(&self, len: usize, round: usize) -> (usize, usize) {
        let start = (round * self.piece).min(len);
        (start, (len - start).min(self.piece))
    }

    /// Whether a piece can be numbered.
    pub(super) fn check(&self, first_part: u16) -> Result<()> {
        if self.rounds() <= usize::from(u16::MAX - first_part) {
            return Ok(());
        }
        let message = format!(
            "{} bytes in pieces of {}: that many parts have no numbers; raise staging.chunk_bytes",
            self.longest, self.piece
        );
        Err(Error::new(ErrorKind::Unsupported, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pieces_of_a_block_are_all_of_it_and_fit() {
        let kinds = [OpKind::AllReduce, OpKind::AllGather, OpKind::AllToAllV];
        for (kind, size) in kinds.into_iter().flat_map(|kind| [1, 2, 3, 8].map(|size| (kind, size)))
        {
            for chunk in [4096, 4100, 10_000] {
                for longest in [0, 1, 64, 4095, 4096, 4097, 8192, 50_000] {
                    let plan = Plan::new(kind, size, chunk, longest);
                    for len in [0, longest / 2, longest] {
                        let mut next = 0;
                        for round in 0..plan.rounds() {
                            let (start, piece) = plan.cut(len, round);
                            assert!(piece == 0 || start == next, "{plan:?} {len}");
                            assert!(piece <= plan.width(round) && start % GRAIN == 0 || piece == 0);
                            assert!(widest(kind, size) * plan.width(round) <= chunk);
                            next += piece;
                        }
                        assert_eq!(next, len, "{plan:?}");
                    }
                    let full = plan.rounds() == 1 || plan.width(plan.rounds() - 1) > 0;
                    assert!(full, "{plan:?}: a round without anything");
                }
            }
        }
    }

    #[test]
    fn too_many_pieces_are_refused() {
        let plan = Plan::new(OpKind::AllReduce, 2, 4096, 4096 * usize::from(u16::MAX));
        assert!(plan.check(0).is_ok());
        assert!(plan.check(1).unwrap_err().message().contains("chunk_bytes"));
    }
}
