//! Reduce-scatter of large vectors by CMA reads: each rank reads and folds its own block of all
//! vectors.

use super::staged;
use crate::algo::Operation;
use crate::algo::fold::{Fold, copy_contribution};
use crate::algo::pattern::slices::{bytes_per_block, chunks, part_index};
use crate::algo::row::{Algorithm, HAS_CMA_AND_FEW_RANKS};
use crate::algo::shared::refused_access::{ExposureOutcome, complete_reduce_scatter};
use crate::algo::shared::sequencer::ShmSequencer;
use crate::base::buffer::{Dst, Src};
use crate::base::error::Result;
use crate::base::ids::Rank;
use crate::base::op::ReduceOp;
use crate::kernel;
use crate::transport::OpKind;
use std::ops::Range;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::ReduceScatter],
    name: "cma_read",
    description: "vectors read from the memory of their ranks, each rank reduces its own block; one hop",
    fits: HAS_CMA_AND_FEW_RANKS,
    pays: |bytes, shape| shape.has_cheap_cma_read && !shape.is_oversubscribed && bytes >= 512 << 10,
    ..Algorithm::shared(run)
};

/// The maximum number of bytes that a rank reads at once from each peer. The L2 cache of a core
/// holds several pieces of this size.
const MAX_READ_BYTES: usize = 256 << 10;

/// Runs the algorithm in two steps. With the first step, the ranks expose their vectors. With the
/// second step, which follows the reads, they end the exposure. If the memory of any rank is not
/// readable, all ranks continue with the staged algorithm. If the kernel refuses a read, all ranks
/// complete the operation through data slots.
///
/// # Errors
/// As [`ShmSequencer::await_all`].
pub fn run(steps: &mut ShmSequencer<'_>, operation: &Operation<'_>) -> Result<()> {
    let len = operation.recv.len();
    let start = steps.rank() * len;
    if !steps.expose_all(operation, Src::empty())? {
        return staged::run(steps, operation);
    }
    let folded =
        read_and_fold_part(steps, operation, start..start + len, operation.recv, |_, _| Ok(()))?;
    match steps.close_exposure_of_slices(folded, len, true)? {
        ExposureOutcome::Interrupted => complete_reduce_scatter(steps, operation),
        _ => Ok(()),
    }
}

/// Folds the range `part` of the vectors that all ranks have exposed with the current step, chunk
/// by chunk. Calls `on_folded_chunk` after each folded chunk. Returns the number of folded bytes,
/// which is less than the length of `part` if the kernel refuses a read.
///
/// This rank's data slots serve as scratch memory. They hold one chunk of each peer, which is small
/// enough to stay in the cache until it is folded.
pub(in crate::algo::shared) fn read_and_fold_part(
    steps: &mut ShmSequencer<'_>,
    operation: &Operation<'_>,
    part: Range<usize>,
    result: Dst<'_>,
    mut on_folded_chunk: impl FnMut(&mut ShmSequencer<'_>, Range<usize>) -> Result<()>,
) -> Result<usize> {
    let (me, size, op) = (steps.rank(), steps.size(), operation.op()?);
    let scratch = steps.own_slots()?;
    let parts = if op == ReduceOp::PremulSum { size } else { (size - 1).max(1) };
    let max_chunk = bytes_per_block(scratch.len(), parts).min(MAX_READ_BYTES);
    let own = operation.send.range(&part);
    for chunk in chunks(part.len(), max_chunk) {
        let scratch_part =
            |rank: Rank| scratch.slice(part_index(rank, me, size) * max_chunk, chunk.len());
        for rank in steps.others() {
            let from = steps.await_exposed(rank)?;
            if !steps.cma_read(from, part.start + chunk.start, scratch_part(rank))? {
                return Ok(chunk.start);
            }
            if op == ReduceOp::PremulSum {
                kernel::scale_copy(
                    operation.dtype(),
                    from.factor,
                    scratch_part(rank),
                    scratch_part(rank).as_src(),
                );
            }
        }
        let mut own_chunk = own.range(&chunk);
        if op == ReduceOp::PremulSum {
            copy_contribution(operation, scratch_part(me), own_chunk)?;
            own_chunk = scratch_part(me).as_src();
        }
        let vector =
            |rank| -> Src<'_> { if rank == me { own_chunk } else { scratch_part(rank).as_src() } };
        Fold::of(operation)?.fold_in_order(result.range(&chunk), size, vector);
        on_folded_chunk(steps, chunk)?;
    }
    Ok(part.len())
}
