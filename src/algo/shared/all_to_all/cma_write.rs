//! All-to-all of large blocks by CMA writes (`process_vm_writev`): the sender, whose cache probably
//! holds the block, copies the block directly to the receiver's buffer.

use super::staged;
use crate::algo::Operation;
use crate::algo::row::{Algorithm, GroupShape, HAS_CMA_WRITE};
use crate::algo::shared::sequencer::ShmSequencer;
use crate::base::error::Result;
use crate::kernel;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllToAll],
    name: "cma_write",
    description: "blocks written to the memory of their ranks; one hop",
    fits: HAS_CMA_WRITE,
    pays,
    ..Algorithm::shared(run)
};

/// Returns whether the size is in the range for this algorithm. On an oversubscribed host, the
/// range applies to the total data of all ranks. Oversubscribed ranks use the algorithm for large
/// data even if CMA is slow, because the staged algorithm yields the core after each few kilobytes,
/// when a data slot is full.
fn pays(bytes: usize, shape: &GroupShape) -> bool {
    let total_bytes = bytes.saturating_mul(shape.ranks).saturating_mul(shape.ranks);
    match (shape.has_cheap_cma_read, shape.is_oversubscribed) {
        (true, true) => (2 << 20..16 << 20).contains(&total_bytes),
        (true, false) => (32 << 10..1 << 20).contains(&bytes),
        (false, true) => total_bytes >= 8 << 20,
        (false, false) => false,
    }
}

/// Runs the algorithm in two steps. With the first step, the ranks expose their receive buffers.
/// With the second step, which follows the writes, they end the exposure. If a write fails on any
/// rank, all ranks continue with the staged algorithm.
///
/// # Errors
/// As [`ShmSequencer::await_all`].
pub fn run(steps: &mut ShmSequencer<'_>, operation: &Operation<'_>) -> Result<()> {
    let outcome = write_blocks(steps, operation);
    if steps.or_revoke_access(operation.recv, outcome)? {
        Ok(())
    } else {
        staged::run(steps, operation)
    }
}

/// Writes this rank's blocks to the receive buffers of the other ranks. Returns false if a write
/// failed on any rank.
fn write_blocks(steps: &mut ShmSequencer<'_>, operation: &Operation<'_>) -> Result<bool> {
    steps.expose_sent(operation)?;
    let me = steps.rank();
    let mut is_complete = true;
    for rank in steps.others() {
        let (peer_buffers, block) = (steps.await_exposed(rank)?, operation.send_block(rank));
        // All blocks have the same length.
        is_complete = is_complete && steps.try_cma_write(block, peer_buffers, me * block.len())?;
    }
    kernel::copy_part(operation.recv.len(), operation.recv_block(me), operation.send_block(me));
    steps.close_exposure(0, is_complete)
}
