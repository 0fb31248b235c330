//! Large vectors, read where they lie: each rank folds its slice of all of them, and everybody
//! reads the folded slices.

use super::{arena_access, two_shot};
use crate::algo::Operation;
use crate::algo::pattern::slices::owned_slice;
use crate::algo::shared::reduce_scatter::cma_read::read_and_fold_part;
use crate::algo::shared::sequencer::ShmSequencer;
use crate::algo::table::{Algorithm, AlgorithmBody, HAS_CMA_AND_FEW_RANKS};
use crate::base::error::Result;
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllReduce],
    name: "cma_read",
    description: "vectors read in the memory of their ranks, each rank folds its slice, all gather; two hops",
    fits: HAS_CMA_AND_FEW_RANKS,
    pays: |bytes, shape| shape.has_cheap_cma_read && !shape.is_oversubscribed && bytes >= 2 << 20,
    ordered: true,
    body: AlgorithmBody::Shared(run),
};

/// Directly where it can be. Else three steps: where the vectors are, where the folded slices are,
/// and that all have been read. In place a rank writes its own slice while others read the rest,
/// and another's slice only once its owner, who alone reads it here, has folded it.
///
/// # Errors
/// As [`ShmSequencer::await_all`].
pub fn run(steps: &mut ShmSequencer<'_>, operation: &Operation<'_>) -> Result<()> {
    if arena_access::run(steps, operation)? {
        return Ok(());
    }
    let (bytes, me, size) = (operation.bytes(), steps.rank(), steps.size());
    let slice_of = |rank| owned_slice(bytes, size, rank);
    let result = |rank| operation.recv.slice(slice_of(rank).start, slice_of(rank).len());
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
