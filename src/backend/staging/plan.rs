//! The plan of a staged operation. Each block is split into pieces of equal length. In round 0, an
//! operation of the same kind runs on the first pieces of all blocks, in round 1 on the second
//! pieces, and so on. Each result piece is copied to its final position, which is correct for
//! in-place calls too.
//!
//! ```text
//! all_to_all, 2 ranks, blocks A and B of 10 bytes, pieces of 4 bytes:
//! round 0: A[0..4], B[0..4]    round 1: A[4..8], B[4..8]    round 2: A[8..10], B[8..10]
//! ```
//!
//! This module only computes offsets and lengths; it does not access buffers.

use crate::backend::{OpKind, Operation};
use crate::base::buffer::{Dst, Src};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{Rank, WorldSize};

/// The minimum number of bytes of a chunk for each rank, and the alignment of pieces. It is one
/// cache line, which fits an element of any type.
pub(super) const CHUNK_ALIGN_BYTES: usize = 64;

/// The buffers of one operation on this rank. The inputs and the outputs each have one block per
/// rank, one block, or no block.
#[derive(Debug)]
pub(super) struct StagingBlocks<'a> {
    pub(super) inputs: Vec<Src<'a>>,
    pub(super) outputs: Vec<Dst<'a>>,
}

/// Returns the maximum number of input blocks or output blocks that a rank has in an operation.
fn max_block_count(kind: OpKind, size: WorldSize) -> usize {
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

impl<'a> StagingBlocks<'a> {
    pub(super) fn of(operation: &Operation<'a>, rank: Rank, size: WorldSize) -> Self {
        let is_root = operation.descriptor.root == Some(rank);
        let one_in = || vec![operation.send];
        let one_out = || vec![operation.recv];
        let all_in = || (0..size).map(|rank| operation.send_block(rank)).collect();
        let all_out = || (0..size).map(|rank| operation.recv_block(rank)).collect();
        let (inputs, outputs) = match operation.descriptor.kind {
            OpKind::AllReduce | OpKind::Scan => (one_in(), one_out()),
            // Rank 0 gets no result.
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

    /// Returns the length of the longest block.
    pub(super) fn longest_block(&self) -> usize {
        let inputs = self.inputs.iter().map(|block| block.len());
        inputs.chain(self.outputs.iter().map(|block| block.len())).max().unwrap_or(0)
    }
}

/// The split of an operation into pieces. It is the same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StagingPlan {
    /// The maximum block length of all ranks in bytes.
    longest_block: usize,
    /// The length in bytes of each piece, except that the last piece of a block may be shorter.
    piece_bytes: usize,
}

impl StagingPlan {
    /// Creates the plan for blocks of at most `longest` bytes. `chunk` is the size in bytes of a
    /// half of a staging buffer, which must hold one piece of every block.
    pub(super) fn new(kind: OpKind, size: WorldSize, chunk: usize, longest: usize) -> Self {
        // The alignment ensures that a piece contains whole elements of any type.
        let piece = chunk / max_block_count(kind, size) / CHUNK_ALIGN_BYTES * CHUNK_ALIGN_BYTES;
        Self { longest_block: longest, piece_bytes: piece.max(CHUNK_ALIGN_BYTES) }
    }

    /// Returns the number of rounds, which is the number of pieces of the longest block. An empty
    /// operation has one round, so that ranks can detect a mismatch.
    pub(super) fn round_count(&self) -> usize {
        self.longest_block.div_ceil(self.piece_bytes).max(1)
    }

    /// Returns the length in bytes of the longest block's piece in a round. Rounds are counted from
    /// 0.
    pub(super) fn round_bytes(&self, round: usize) -> usize {
        self.longest_block.saturating_sub(round * self.piece_bytes).min(self.piece_bytes)
    }

    /// Returns the offset and the length of the piece of a round, for a block of `len` bytes.
    pub(super) fn piece_range(&self, len: usize, round: usize) -> (usize, usize) {
        let start = (round * self.piece_bytes).min(len);
        (start, (len - start).min(self.piece_bytes))
    }

    /// Checks that there are enough part numbers
    /// ([`Descriptor::part`](crate::transport::Descriptor::part)) for all rounds. `first_part` is
    /// the number of part numbers that are already used.
    pub(super) fn check_part_numbers(&self, first_part: u16) -> Result<()> {
        if self.round_count() <= usize::from(u16::MAX - first_part) {
            return Ok(());
        }
        let message = format!(
            "{} bytes in pieces of {} bytes need more parts than there are part numbers: raise \
             staging.chunk_bytes",
            self.longest_block, self.piece_bytes
        );
        Err(Error::new(ErrorKind::Unsupported, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_the_block_and_fit_the_chunk() {
        let kinds = [OpKind::AllReduce, OpKind::AllGather, OpKind::AllToAllV];
        for (kind, size) in kinds.into_iter().flat_map(|kind| [1, 2, 3, 8].map(|size| (kind, size)))
        {
            for chunk in [4096, 4100, 10_000] {
                for longest in [0, 1, 64, 4095, 4096, 4097, 8192, 50_000] {
                    let plan = StagingPlan::new(kind, size, chunk, longest);
                    for len in [0, longest / 2, longest] {
                        let mut next = 0;
                        for round in 0..plan.round_count() {
                            let (start, piece) = plan.piece_range(len, round);
                            assert!(piece == 0 || start == next, "{plan:?} {len}");
                            assert!(
                                piece <= plan.round_bytes(round) && start % CHUNK_ALIGN_BYTES == 0
                                    || piece == 0
                            );
                            assert!(max_block_count(kind, size) * plan.round_bytes(round) <= chunk);
                            next += piece;
                        }
                        assert_eq!(next, len, "{plan:?}");
                    }
                    let full =
                        plan.round_count() == 1 || plan.round_bytes(plan.round_count() - 1) > 0;
                    assert!(full, "{plan:?}: an empty round");
                }
            }
        }
    }

    #[test]
    fn too_many_pieces_are_refused() {
        let plan = StagingPlan::new(OpKind::AllReduce, 2, 4096, 4096 * usize::from(u16::MAX));
        assert!(plan.check_part_numbers(0).is_ok());
        assert!(plan.check_part_numbers(1).unwrap_err().message().contains("chunk_bytes"));
    }
}
