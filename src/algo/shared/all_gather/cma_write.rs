//! All-gather of large blocks by CMA writes (`process_vm_writev`): each rank copies its own block,
//! which its cache probably holds, to the buffers of all other ranks.

use super::staged;
use crate::algo::Operation;
use crate::algo::row::{Algorithm, HAS_CMA_WRITE};
use crate::algo::shared::sequencer::ShmSequencer;
use crate::base::error::Result;
use crate::kernel;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllGather],
    name: "cma_write",
    description: "blocks written to the memory of all ranks; one hop",
    fits: HAS_CMA_WRITE,
    // The upper limit is the size up to which the owner's L2 cache holds the block.
    pays: |bytes, shape| {
        shape.has_cheap_cma_read
            && !shape.is_oversubscribed
            && (128 << 10..1 << 20).contains(&bytes)
    },
    ..Algorithm::shared(run)
};

/// Runs the algorithm in two steps. With the first step, the ranks expose their receive buffers.
/// With the second step, which follows the writes, they end the exposure. If a write fails on any
/// rank, all ranks continue with the staged algorithm.
///
/// # Errors
/// As [`ShmSequencer::await_all`].
pub fn run(steps: &mut ShmSequencer<'_>, operation: &Operation<'_>) -> Result<()> {
    let outcome = write_own_block(steps, operation);
    if steps.or_revoke_access(operation.recv, outcome)? {
        Ok(())
    } else {
        staged::run(steps, operation)
    }
}

/// Writes this rank's block to all receive buffers. Returns false if a write failed on any rank.
fn write_own_block(steps: &mut ShmSequencer<'_>, operation: &Operation<'_>) -> Result<bool> {
    steps.expose_sent(operation)?;
    let me = steps.rank();
    let is_complete =
        steps.try_cma_write_all(steps.others(), operation.send, me * operation.bytes())?;
    kernel::copy_part(operation.recv.len(), operation.recv_block(me), operation.send);
    steps.close_exposure(0, is_complete)
}
