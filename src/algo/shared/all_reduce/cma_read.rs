//! All-reduce of large vectors by CMA reads: each rank reads and folds its slice of all vectors,
//! and then reads the folded slices of the other ranks.

use super::two_shot;
use crate::algo::Operation;
use crate::algo::pattern::slices::owned_slice;
use crate::algo::row::{Algorithm, HAS_CMA_AND_FEW_RANKS};
use crate::algo::shared::reduce_scatter::cma_read::read_and_fold_part;
use crate::algo::shared::refused_access::{ExposureOutcome, complete_all_reduce};
use crate::algo::shared::sequencer::ShmSequencer;
use crate::base::error::Result;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllReduce],
    name: "cma_read",
    description: "vectors read from the memory of their ranks, each rank reduces its slice, all gather; two hops",
    fits: HAS_CMA_AND_FEW_RANKS,
    pays: |bytes, shape| shape.has_cheap_cma_read && !shape.is_oversubscribed && bytes >= 2 << 20,
    ..Algorithm::shared(run)
};

/// Runs the algorithm in three steps:
///
/// 1. The ranks expose their vectors. Each rank reads and folds its own slice of all vectors.
/// 2. The ranks expose their folded slices. Each rank reads the folded slices of the other ranks.
/// 3. The ranks end the exposure.
///
/// In an in-place call, the receive buffer of a rank is also its send buffer, which the peers read.
/// While the peers read the other slices of that buffer, the rank overwrites its own slice, which
/// no peer reads. It overwrites the slice of a peer only after that peer has exposed the complete
/// slice with step 2. The peer is the only reader of that slice, and has finished reading it.
///
/// If the kernel refuses a read, all ranks complete the operation through data slots.
///
/// # Errors
/// As [`ShmSequencer::await_all`].
pub fn run(steps: &mut ShmSequencer<'_>, operation: &Operation<'_>) -> Result<()> {
    let (bytes, me, size) = (operation.bytes(), steps.rank(), steps.size());
    let slice_of = |rank| owned_slice(bytes, size, rank);
    let result = |rank| operation.recv.range(&slice_of(rank));
    if !steps.expose_all(operation, operation.recv.as_src())? {
        return two_shot::run(steps, operation);
    }
    let own_len = slice_of(me).len();
    let folded = read_and_fold_part(steps, operation, slice_of(me), result(me), |_, _| Ok(()))?;
    steps.expose_result(operation, folded == own_len)?;
    let mut has_copied_all = true;
    for rank in steps.others() {
        let peer_buffers = steps.await_exposed(rank)?;
        let start = slice_of(rank).start;
        has_copied_all = has_copied_all
            && peer_buffers.is_readable()
            && steps.cma_read(peer_buffers, start, result(rank))?;
    }
    match steps.close_exposure_of_slices(folded, own_len, has_copied_all)? {
        ExposureOutcome::Interrupted => complete_all_reduce(steps, operation),
        _ => Ok(()),
    }
}
