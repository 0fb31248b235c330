//! All-gather of large blocks by CMA writes: each rank copies its own block, which its cache
//! probably holds, to all other ranks.

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
    // The owner's L2 cache does not hold a block that is larger than this limit.
    pays: |bytes, shape| {
        shape.has_cheap_cma_read
            && !shape.is_oversubscribed
            && (128 << 10..1 << 20).contains(&bytes)
    },
    ..Algorithm::shared(run)
};

/// Takes two steps: the ranks expose their receive buffers,
/// and end the exposure after all writes.
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

/// Returns false if a peer's memory cannot be written.
fn write_own_block(steps: &mut ShmSequencer<'_>, operation: &Operation<'_>) -> Result<bool> {
    steps.expose_sent(operation)?;
    let me = steps.rank();
    let is_complete =
        steps.try_cma_write_all(steps.others(), operation.send, me * operation.bytes())?;
    kernel::copy_part(operation.recv.len(), operation.recv_block(me), operation.send);
    steps.close_exposure_if_all(is_complete)
}
