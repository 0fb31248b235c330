//! All-gather of blocks of any size: each rank stages (copies to its data slot) one chunk of its
//! block at a time, and copies the staged chunks of all other ranks.

use crate::algo::Operation;
use crate::algo::pattern::slices::{chunks, clip_to_block};
use crate::algo::row::Algorithm;
use crate::algo::shared::arena_state::NO_ARENA_OFFER;
use crate::algo::shared::sequencer::ShmSequencer;
use crate::base::error::Result;
use crate::kernel;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllGather, OpKind::AllGatherV],
    name: "staged",
    description: "blocks staged in data slots, each rank copies all",
    ..Algorithm::shared(run)
};

/// Runs the algorithm in one step for each chunk of the longest block.
///
/// # Errors
/// As [`ShmSequencer::await_all`].
pub fn run(steps: &mut ShmSequencer<'_>, operation: &Operation<'_>) -> Result<()> {
    let (send, all) = (operation.send, operation.recv.len());
    for chunk in chunks(operation.bytes(), steps.slot_bytes()) {
        let recv_part = |rank| {
            let block = operation.recv_block(rank);
            block.range(&clip_to_block(&chunk, block.len()))
        };
        let own = send.range(&clip_to_block(&chunk, send.len()));
        kernel::stage(steps.next_part(chunk.len())?.slice(0, own.len()), own);
        steps.publish(&NO_ARENA_OFFER)?;
        kernel::copy_part(all, recv_part(steps.rank()), own);
        if steps.has_arena_offers(operation)? {
            return run(steps, operation);
        }
        for rank in steps.others() {
            steps.await_rank(rank)?;
            let dst = recv_part(rank);
            let staged = steps.part(rank, chunk.len()).slice(0, dst.len());
            kernel::copy_part(all, dst, staged);
        }
    }
    Ok(())
}
