//! All-gather of large blocks by CMA reads (`process_vm_readv`): each receiver copies each block
//! once, directly from the buffer of the rank that owns the block.

use super::staged;
use crate::algo::Operation;
use crate::algo::row::{Algorithm, HAS_CMA};
use crate::algo::shared::sequencer::ShmSequencer;
use crate::base::error::Result;
use crate::kernel;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllGather, OpKind::AllGatherV],
    name: "cma_read",
    description: "blocks read from the memory of their ranks; one hop",
    fits: HAS_CMA,
    pays: |bytes, shape| {
        shape.has_cheap_cma_read
            && bytes >= if shape.is_oversubscribed { 8 << 20 } else { 128 << 10 }
    },
    ..Algorithm::shared(run)
};

/// Runs the algorithm in two steps. With the first step, the ranks expose their blocks. With the
/// second step, which follows the reads, they end the exposure. If a read fails on any rank, all
/// ranks continue with the staged algorithm.
///
/// # Errors
/// As [`ShmSequencer::await_all`].
pub fn run(steps: &mut ShmSequencer<'_>, operation: &Operation<'_>) -> Result<()> {
    steps.expose_sent(operation)?;
    let own = operation.recv_block(steps.rank());
    kernel::copy_part(operation.recv.len(), own, operation.send);
    let mut is_complete = true;
    for rank in steps.others() {
        let peer_buffers = steps.await_exposed(rank)?;
        is_complete =
            is_complete && steps.try_cma_read(peer_buffers, 0, operation.recv_block(rank))?;
    }
    if steps.close_exposure(0, is_complete)? { Ok(()) } else { staged::run(steps, operation) }
}
