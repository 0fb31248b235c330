//! Blocks of any size, a chunk at a time through the slots: everybody stages its block, everybody
//! copies all blocks.

use super::direct;
use crate::algo::Operation;
use crate::algo::pattern::slices::{chunks, clipped};
use crate::algo::shared::direct::NOTHING;
use crate::algo::shared::steps::Steps;
use crate::algo::table::{ALWAYS, Algorithm, Body};
use crate::base::error::Result;
use crate::kernel;
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllGather, OpKind::AllGatherV],
    name: "staged",
    description: "blocks staged in slots, everybody copies all",
    fits: ALWAYS,
    pays: ALWAYS,
    ordered: true,
    body: Body::Shared(run),
};

/// Directly where it can be. Else one step per chunk of the longest block.
///
/// # Errors
/// As [`Steps::await_all`].
pub fn run(steps: &mut Steps<'_>, operation: &Operation<'_>) -> Result<()> {
    if direct::run(steps, operation)? {
        return Ok(());
    }
    let (send, all) = (operation.send, operation.recv.len());
    for chunk in chunks(operation.bytes(), steps.slot_bytes()) {
        let part_of = |rank| {
            let block = operation.recv_block(rank);
            let part = clipped(&chunk, block.len());
            block.slice(part.start, part.len())
        };
        let own = clipped(&chunk, send.len());
        let own = send.slice(own.start, own.len());
        kernel::stage(steps.next_part(chunk.len())?.slice(0, own.len()), own);
        steps.publish(&NOTHING)?;
        kernel::copy_part(all, part_of(steps.rank()), own);
        if steps.is_asked(operation)? {
            return run(steps, operation);
        }
        for rank in steps.others() {
            steps.await_rank(rank)?;
            let place = part_of(rank);
            let theirs = steps.part(rank, chunk.len()).slice(0, place.len());
            kernel::copy_part(all, place, theirs);
        }
    }
    Ok(())
}
