//! All-reduce of large vectors by CMA reads and writes: each rank reads and folds its slice of all
//! vectors, and writes the folded slice to the receive buffers of all ranks. It works chunk by
//! chunk, so that its cache still holds the folded data and the cache lines of the destination when
//! it writes a chunk.

use super::two_shot;
use crate::algo::Operation;
use crate::algo::pattern::slices::owned_slice;
use crate::algo::row::{Algorithm, GroupShape, HAS_CMA_WRITE_AND_FEW_RANKS};
use crate::algo::shared::reduce_scatter::cma_read::read_and_fold_part;
use crate::algo::shared::refused_access::{ExposureOutcome, complete_all_reduce};
use crate::algo::shared::sequencer::ShmSequencer;
use crate::base::error::Result;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllReduce],
    name: "cma_write",
    description: "vectors read from the memory of their ranks, each rank reduces its slice into the results of all; \
                  one hop",
    fits: HAS_CMA_WRITE_AND_FEW_RANKS,
    pays,
    ..Algorithm::shared(run)
};

/// Returns whether CMA reads are cheap and the vector reaches the minimum size. On an
/// oversubscribed host, the minimum applies to the slice that each rank folds.
fn pays(bytes: usize, shape: &GroupShape) -> bool {
    let min_bytes = if shape.is_oversubscribed { (256 << 10) * shape.ranks } else { 192 << 10 };
    shape.has_cheap_cma_read && bytes >= min_bytes
}

/// Runs the algorithm in two steps. With the first step, the ranks expose their vectors. With the
/// second step, which follows the fold and the writes, they end the exposure. If memory is not
/// readable, all ranks continue with the two-shot algorithm. If the kernel refuses a read or a
/// write, all ranks complete the operation through data slots.
///
/// # Errors
/// As [`ShmSequencer::await_all`].
pub fn run(steps: &mut ShmSequencer<'_>, operation: &Operation<'_>) -> Result<()> {
    let folded = fold_and_write_slice(steps, operation);
    match steps.or_revoke_access(operation.recv, folded)? {
        ExposureOutcome::Complete => Ok(()),
        ExposureOutcome::NotStarted => two_shot::run(steps, operation),
        ExposureOutcome::Interrupted => complete_all_reduce(steps, operation),
    }
}

/// Folds this rank's slice and writes it to all receive buffers. Only this rank reads and writes
/// this slice of any vector, so an in-place call overwrites no input that another rank still reads.
fn fold_and_write_slice(
    steps: &mut ShmSequencer<'_>,
    operation: &Operation<'_>,
) -> Result<ExposureOutcome> {
    if !steps.expose_all(operation, operation.recv.as_src())? {
        return Ok(ExposureOutcome::NotStarted);
    }
    let own_slice = owned_slice(operation.bytes(), steps.size(), steps.rank());
    let result = operation.recv.range(&own_slice);
    let mut has_written_all = true;
    let folded =
        read_and_fold_part(steps, operation, own_slice.clone(), result, |steps, chunk| {
            let folded = result.range(&chunk).as_src();
            for rank in steps.others() {
                let peer_buffers = steps.await_exposed(rank)?;
                let start = own_slice.start + chunk.start;
                has_written_all =
                    has_written_all && steps.cma_write(folded, peer_buffers, start)?;
            }
            Ok(())
        })?;
    steps.close_exposure_of_slices(folded, own_slice.len(), has_written_all)
}
