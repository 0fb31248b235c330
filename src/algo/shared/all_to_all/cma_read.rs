//! Large blocks, read where they lie: each is copied once.

use super::{arena_access, staged};
use crate::algo::Operation;
use crate::algo::select::GroupShape;
use crate::algo::shared::sequencer::ShmSequencer;
use crate::algo::table::{Algorithm, AlgorithmBody, HAS_CMA};
use crate::base::error::Result;
use crate::kernel;
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllToAll],
    name: "cma_read",
    description: "blocks read in the memory of their ranks; one hop",
    fits: HAS_CMA,
    pays,
    ordered: true,
    body: AlgorithmBody::Shared(run),
};

/// From which blocks on: among ranks that have no core each, by what all together move.
fn pays(bytes: usize, shape: &GroupShape) -> bool {
    let total_bytes = bytes.saturating_mul(shape.ranks).saturating_mul(shape.ranks);
    shape.has_cheap_cma_read
        && if shape.is_oversubscribed { total_bytes >= 2 << 20 } else { bytes >= 128 << 10 }
}

/// Directly where it can be. Else two steps: where the blocks are, and that all have been read.
///
/// # Errors
/// As [`ShmSequencer::await_all`].
pub fn run(steps: &mut ShmSequencer<'_>, operation: &Operation<'_>) -> Result<()> {
    if arena_access::run(steps, operation)? {
        return Ok(());
    }
    let me = steps.rank();
    steps.expose_sent(operation)?;
    kernel::copy_part(operation.recv.len(), operation.recv_block(me), operation.send_block(me));
    let mut is_complete = true;
    for rank in steps.others() {
        let peer_buffers = steps.await_exposed(rank)?;
        let recv_block = operation.recv_block(rank);
        // All blocks have one length.
        is_complete =
            is_complete && steps.try_cma_read(peer_buffers, me * recv_block.len(), recv_block)?;
    }
    if steps.close_exposure_if_all(is_complete)? { Ok(()) } else { staged::run(steps, operation) }
}
