//! Reduce-scatter over messages: each member receives its block of the fold of all vectors.

pub mod ordered;
pub mod pairwise;
pub mod ring;

use super::{MessageOperation, SEGMENT_BYTES, Team};
use crate::algo::fold::{Fold, copy_partial_contribution, is_partial_contribution_scaled};
use crate::algo::pattern::slices::{chunks, clip_to_block};
use crate::base::buffer::{Dst, Src};
use crate::base::error::Result;

/// Calls `run_chunk` for one chunk of each block at a time. Its arguments are:
///
/// - the fold of the contributions,
/// - a function that returns this rank's contribution to the chunk of a member's block,
/// - the destination of this rank's result,
/// - scratch memory for three chunks.
fn reduce_in_chunks(
    call: &mut MessageOperation<'_>,
    team: Team<'_>,
    run_chunk: impl for<'d> Fn(
        &mut MessageOperation<'_>,
        Fold,
        &dyn Fn(usize) -> Src<'d>,
        Dst<'d>,
        Dst<'d>,
    ) -> Result<()>,
) -> Result<()> {
    let operation = call.operation;
    let (size, bytes) = (team.size(), operation.bytes());
    let fold = Fold::contributions(operation, size)?;
    // Scaled contributions need scratch memory for all blocks.
    let is_scaled = is_partial_contribution_scaled(operation)?;
    let max_chunk =
        if is_scaled { (4 * SEGMENT_BYTES / size).next_multiple_of(64) } else { SEGMENT_BYTES };
    let scaled = if is_scaled { size * max_chunk.min(bytes) } else { 0 };
    let mut scratch = call.scratch(3 * max_chunk.min(bytes) + scaled)?;
    let memory = Dst::from(scratch.as_mut_slice());
    let (scaled, memory) = (memory.slice(0, scaled), memory.slice(scaled, memory.len() - scaled));
    for chunk in chunks(bytes, max_chunk) {
        let len = chunk.len();
        let part = |rank: usize| {
            let block = operation.send_block(rank);
            block.range(&clip_to_block(&chunk, block.len()))
        };
        if is_scaled {
            for rank in 0..size {
                let part = part(rank);
                let to = scaled.slice(rank * len, part.len());
                copy_partial_contribution(operation, to, part, size)?;
            }
        }
        let outgoing_part = |rank: usize| match part(rank) {
            part if is_scaled => scaled.as_src().slice(rank * len, part.len()),
            part => part,
        };
        let result = operation.recv.range(&clip_to_block(&chunk, operation.recv.len()));
        run_chunk(call, fold, &outgoing_part, result, memory)?;
    }
    call.return_scratch(scratch);
    Ok(())
}
