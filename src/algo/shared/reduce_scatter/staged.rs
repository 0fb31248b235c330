//! Reduce-scatter of blocks of any size, one chunk of each block at a time. Each rank stages the
//! chunks for its peers (copies them to its data slot), and folds the chunks that its peers have
//! staged for this rank. This takes one hop, and a rank folds only the block that it keeps.

use crate::algo::Operation;
use crate::algo::fold::{Fold, is_contribution_unscaled, stage_contribution};
use crate::algo::pattern::slices::{chunks, clip_to_block, part_index, part_stride};
use crate::algo::row::Algorithm;
use crate::algo::shared::arena_state::NO_ARENA_OFFER;
use crate::algo::shared::sequencer::ShmSequencer;
use crate::algo::shared::stagers::RankStagers;
use crate::base::error::Result;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::ReduceScatter, OpKind::ReduceScatterV],
    name: "staged",
    description: "staged in data slots, each rank reduces its own block; one hop",
    ..Algorithm::shared(run)
};

/// Runs the algorithm in one step for each chunk of the longest block. The data slot contains one
/// part for each peer. If the operator is `PREMUL_SUM`, it also contains a part for this rank,
/// because this rank's contribution must be multiplied by its factor before the fold.
///
/// # Errors
/// As [`ShmSequencer::await_all`].
pub fn run(steps: &mut ShmSequencer<'_>, operation: &Operation<'_>) -> Result<()> {
    let (me, size, element) = (steps.rank(), steps.size(), operation.element_bytes());
    let is_unscaled = is_contribution_unscaled(operation)?;
    let parts = if is_unscaled { (size - 1).max(1) } else { size };
    let max_chunk = (steps.slot_bytes() / parts / element).max(1) * element;
    let mut stagers = RankStagers::of(operation.bytes());
    for chunk in chunks(operation.bytes(), max_chunk) {
        let stride = part_stride(chunk.len(), max_chunk);
        let slot = steps.next_part(stride * parts)?;
        let send_part = |rank| {
            let block = operation.send_block(rank);
            block.range(&clip_to_block(&chunk, block.len()))
        };
        for rank in steps.others().chain((!is_unscaled).then_some(me)) {
            let part = send_part(rank);
            let part_offset = part_index(rank, me, size) * stride;
            let slot_part = slot.slice(part_offset, part.len());
            stage_contribution(operation, stagers.stager_for(rank), slot_part, part)?;
        }
        steps.publish(&NO_ARENA_OFFER)?;
        if steps.has_arena_offers(operation)? {
            return run(steps, operation);
        }
        steps.await_all()?;
        let result = operation.recv.range(&clip_to_block(&chunk, operation.recv.len()));
        Fold::of(operation)?.fold_in_order(result, size, |rank| match rank == me && is_unscaled {
            true => send_part(me),
            false => {
                let staged = steps.part(rank, stride * parts);
                staged.slice(part_index(me, rank, size) * stride, result.len())
            }
        });
    }
    Ok(())
}
