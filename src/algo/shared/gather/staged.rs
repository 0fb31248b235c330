//! Gather of blocks of any size, one chunk at a time: each rank stages its chunk (copies it to its
//! data slot), and the root copies the chunks of all ranks. Only the root waits. Another rank may
//! run ahead until all its data slots contain chunks that the root has not read.

use crate::algo::Operation;
use crate::algo::pattern::slices::{chunks, clip_to_block};
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
    kinds: &[OpKind::Gather, OpKind::GatherV],
    name: "staged",
    description: "blocks staged in data slots, the root copies all",
    ..Algorithm::shared(run)
};

/// Runs the algorithm in one step for each chunk of the longest block.
///
/// # Errors
/// As [`ShmSequencer::await_all`], and `Mismatch` if a rank sends a length that the root does not
/// expect.
pub fn run(steps: &mut ShmSequencer<'_>, operation: &Operation<'_>) -> Result<()> {
    let (root, send, all) = (operation.root()?, operation.send, operation.recv.len());
    let is_root = steps.rank() == root;
    let longest = longest_block(steps, operation, |steps| {
        exchange_block_length(steps, send.len(), |steps, rank, sent| match is_root {
            true => {
                let expected = operation.recv_block(rank).len() as u64;
                let sender = TransferEnd { rank, bytes: sent };
                check_counts(steps, sender, TransferEnd { rank: root, bytes: expected })
            }
            false => Ok(()),
        })
    })?;
    for chunk in chunks(longest, steps.slot_bytes()) {
        let own = clip_to_block(&chunk, send.len());
        let part = send.range(&own);
        if !is_root {
            kernel::stage(steps.next_part(chunk.len())?.slice(0, own.len()), part);
            steps.publish_finished(&[])?;
            continue;
        }
        steps.publish_unnotified()?;
        kernel::copy_part(all, operation.recv_block(root).range(&own), part);
        for rank in steps.others() {
            steps.await_rank(rank)?;
            let block = operation.recv_block(rank);
            let part = clip_to_block(&chunk, block.len());
            let from = steps.part(rank, chunk.len()).slice(0, part.len());
            kernel::copy_part(all, block.range(&part), from);
        }
        steps.checkpoint();
    }
    Ok(())
}
