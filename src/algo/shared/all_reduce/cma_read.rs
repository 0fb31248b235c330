//! All-reduce of large vectors by CMA reads: each rank reads and folds its slice of all vectors,
//! and then reads the folded slices of the other ranks.

use super::two_shot;
use crate::algo::Operation;
use crate::algo::pattern::slices::owned_slice;
use crate::algo::row::{Algorithm, HAS_CMA_AND_FEW_RANKS};
use crate::algo::shared::reduce_scatter::cma_read::read_and_fold_part;
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

/// Takes three steps: the ranks expose their vectors, expose
/// their folded slices, and end the exposure after all reads. In an in-place call a rank writes its
/// own slice while its peers read the rest. It writes another rank's slice only after the owner,
/// which alone reads that slice here, has folded it.
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
    read_and_fold_part(steps, operation, slice_of(me), result(me), |_, _| Ok(()))?;
    steps.expose_result(operation)?;
    for rank in steps.others() {
        let peer_buffers = steps.await_exposed(rank)?;
        steps.cma_read(peer_buffers, slice_of(rank).start, result(rank))?;
    }
    steps.close_exposure()
}
