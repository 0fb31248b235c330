//! Scatter of blocks of any size, one chunk of each block at a time, through the root's data slots.
//! The root does not wait for its readers. It may run ahead until all its data slots contain chunks
//! that a rank has not read.

use crate::algo::Operation;
use crate::algo::pattern::slices::{
    bytes_per_block, chunks, clip_to_block, part_index, part_stride,
};
use crate::algo::row::Algorithm;
use crate::algo::shared::count_exchange::{
    TransferEnd, check_counts, exchange_block_length, longest_block,
};
use crate::algo::shared::sequencer::ShmSequencer;
use crate::base::error::Result;
use crate::kernel;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Scatter, OpKind::ScatterV],
    name: "staged",
    description: "through the root's data slots, which hold a chunk for each rank",
    ..Algorithm::shared(run)
};

/// Runs the algorithm in one step for each chunk of the longest block. The root's data slot
/// contains one part for each other rank ([`part_index`]).
///
/// # Errors
/// As [`ShmSequencer::await_all`], and `Mismatch` if a rank expects a length that the root does not
/// send.
pub fn run(steps: &mut ShmSequencer<'_>, operation: &Operation<'_>) -> Result<()> {
    let (root, recv, me) = (operation.root()?, operation.recv, steps.rank());
    let longest = longest_block(steps, operation, |steps| {
        exchange_block_length(steps, recv.len(), |steps, rank, expected| match me == root {
            true => {
                let sent = operation.send_block(rank).len() as u64;
                let receiver = TransferEnd { rank, bytes: expected };
                check_counts(steps, TransferEnd { rank: root, bytes: sent }, receiver)
            }
            false => Ok(()),
        })
    })?;
    let (size, others) = (steps.size(), (steps.size() - 1).max(1));
    let max_chunk = bytes_per_block(steps.slot_bytes(), others);
    for chunk in chunks(longest, max_chunk) {
        let stride = part_stride(chunk.len(), max_chunk);
        let own = clip_to_block(&chunk, recv.len());
        let dst = recv.range(&own);
        if me != root {
            steps.publish_unnotified()?;
            steps.await_rank(root)?;
            let staged = steps.part(root, stride * others);
            let part = staged.slice(part_index(me, root, size) * stride, own.len());
            kernel::copy_part(recv.len(), dst, part);
            steps.checkpoint();
            continue;
        }
        let slot = steps.next_part(stride * others)?;
        for rank in steps.others() {
            let block = operation.send_block(rank);
            let part = clip_to_block(&chunk, block.len());
            let from = block.range(&part);
            kernel::stage(slot.slice(part_index(rank, me, size) * stride, part.len()), from);
        }
        steps.publish_finished(&[])?;
        let part = operation.send_block(root).range(&own);
        kernel::copy_part(recv.len(), dst, part);
    }
    Ok(())
}
