//! All-to-all of blocks of any size, one chunk of each block at a time. Each rank stages the chunks
//! for its peers (copies them to its data slot), and copies the chunks that its peers have staged
//! for this rank. This takes one hop.

use crate::algo::Operation;
use crate::algo::pattern::slices::{
    bytes_per_block, chunks, clip_to_block, part_index, part_stride,
};
use crate::algo::row::Algorithm;
use crate::algo::shared::arena_state::NO_ARENA_OFFER;
use crate::algo::shared::count_exchange::{
    TransferEnd, check_counts, exchange_block_lengths, longest_block,
};
use crate::algo::shared::sequencer::ShmSequencer;
use crate::algo::shared::stagers::RankStagers;
use crate::base::error::Result;
use crate::kernel;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllToAll, OpKind::AllToAllV],
    name: "staged",
    description: "staged in data slots, which hold a chunk for each rank, each rank copies its own; one hop",
    ..Algorithm::shared(run)
};

/// Runs the algorithm in one step for each chunk of the longest block. The data slot of a rank
/// contains one part for each other rank ([`part_index`]).
///
/// # Errors
/// As [`ShmSequencer::await_all`], and `Mismatch` if a rank sends a length that the receiver does
/// not expect.
pub fn run(steps: &mut ShmSequencer<'_>, operation: &Operation<'_>) -> Result<()> {
    let (me, size, all) = (steps.rank(), steps.size(), operation.recv.len());
    let others = (size - 1).max(1);
    let longest = longest_block(steps, operation, |steps| {
        let mine = |rank| operation.send_block(rank).len();
        exchange_block_lengths(steps, mine, |steps, rank, sent| {
            let expected = operation.recv_block(rank).len() as u64;
            let sender = TransferEnd { rank, bytes: sent };
            check_counts(steps, sender, TransferEnd { rank: me, bytes: expected })
        })
    })?;
    let max_chunk = bytes_per_block(steps.slot_bytes(), others);
    let mut stagers = RankStagers::of(longest);
    for chunk in chunks(longest, max_chunk) {
        let send_part = |rank| {
            let block = operation.send_block(rank);
            block.range(&clip_to_block(&chunk, block.len()))
        };
        let recv_part = |rank| {
            let block = operation.recv_block(rank);
            block.range(&clip_to_block(&chunk, block.len()))
        };
        let stride = part_stride(chunk.len(), max_chunk);
        let slot = steps.next_part(stride * others)?;
        for rank in steps.others() {
            let part = send_part(rank);
            let slot_part = slot.slice(part_index(rank, me, size) * stride, part.len());
            stagers.stager_for(rank).stage(slot_part, part);
        }
        steps.publish(&NO_ARENA_OFFER)?;
        kernel::copy_part(all, recv_part(me), send_part(me));
        if steps.has_arena_offers(operation)? {
            return run(steps, operation);
        }
        for rank in steps.others() {
            steps.await_rank(rank)?;
            let dst = recv_part(rank);
            let staged = steps.part(rank, stride * others);
            let part = staged.slice(part_index(me, rank, size) * stride, dst.len());
            kernel::copy_part(all, dst, part);
        }
    }
    Ok(())
}
