//! All-to-all of large blocks by CMA reads: each block is copied once, directly from the sender's
//! buffer.

use super::staged;
use crate::algo::Operation;
use crate::algo::row::{Algorithm, GroupShape, HAS_CMA};
use crate::algo::shared::sequencer::ShmSequencer;
use crate::base::error::Result;
use crate::kernel;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllToAll],
    name: "cma_read",
    description: "blocks read from the memory of their ranks; one hop",
    fits: HAS_CMA,
    pays,
    ..Algorithm::shared(run)
};

/// Returns whether the blocks reach the minimum size. On an oversubscribed host the minimum applies
/// to the total data of all ranks.
fn pays(bytes: usize, shape: &GroupShape) -> bool {
    let total_bytes = bytes.saturating_mul(shape.ranks).saturating_mul(shape.ranks);
    shape.has_cheap_cma_read
        && if shape.is_oversubscribed { total_bytes >= 2 << 20 } else { bytes >= 128 << 10 }
}

/// Takes two steps: the ranks expose their blocks, and end
/// the exposure after all reads.
///
/// # Errors
/// As [`ShmSequencer::await_all`].
pub fn run(steps: &mut ShmSequencer<'_>, operation: &Operation<'_>) -> Result<()> {
    let me = steps.rank();
    steps.expose_sent(operation)?;
    kernel::copy_part(operation.recv.len(), operation.recv_block(me), operation.send_block(me));
    let mut is_complete = true;
    for rank in steps.others() {
        let peer_buffers = steps.await_exposed(rank)?;
        let recv_block = operation.recv_block(rank);
        // All blocks have the same length.
        is_complete =
            is_complete && steps.try_cma_read(peer_buffers, me * recv_block.len(), recv_block)?;
    }
    if steps.close_exposure_if_all(is_complete)? { Ok(()) } else { staged::run(steps, operation) }
}
