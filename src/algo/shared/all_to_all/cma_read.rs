//! All-to-all of large blocks by CMA reads (`process_vm_readv`): each receiver copies its blocks
//! once, directly from the buffers of the senders.

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

/// Returns whether CMA reads are cheap and the blocks reach the minimum size. On an oversubscribed
/// host, the minimum applies to the total data of all ranks.
fn pays(bytes: usize, shape: &GroupShape) -> bool {
    let total_bytes = bytes.saturating_mul(shape.ranks).saturating_mul(shape.ranks);
    shape.has_cheap_cma_read
        && if shape.is_oversubscribed { total_bytes >= 2 << 20 } else { bytes >= 128 << 10 }
}

/// Runs the algorithm in two steps. With the first step, the ranks expose their blocks. With the
/// second step, which follows the reads, they end the exposure. If a read fails on any rank, all
/// ranks continue with the staged algorithm.
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
    if steps.close_exposure(0, is_complete)? { Ok(()) } else { staged::run(steps, operation) }
}
