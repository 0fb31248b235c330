//! Broadcast of large vectors by CMA. The vector is cut into one share per rank. Each receiver
//! reads its share from the root's buffer, and writes the share to the other receivers. The root
//! writes its share to all receivers. All ranks thus copy at the same time, and all copy about the
//! same amount. (Van de Geijn's broadcast performs a scatter and then an all-gather; this algorithm
//! performs both at the same time.)

use super::staged;
use crate::algo::Operation;
use crate::algo::pattern::slices::{chunks, owned_slice};
use crate::algo::row::{Algorithm, HAS_CMA_WRITE};
use crate::algo::shared::sequencer::ShmSequencer;
use crate::base::error::Result;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Broadcast],
    name: "cma_write",
    description: "each rank reads a share from the root's memory and writes it to the memory of the other ranks; \
                  one hop",
    fits: HAS_CMA_WRITE,
    pays: |bytes, shape| shape.has_cheap_cma_read && !shape.is_oversubscribed && bytes >= 192 << 10,
    ..Algorithm::shared(run)
};

/// The number of bytes that a receiver reads and writes at a time. The cache of the receiver's core
/// still holds the bytes when the receiver writes them.
const CHUNK: usize = 256 << 10;

/// Runs the algorithm in two steps. With the first step, the ranks expose their vectors. With the
/// second step, which follows the copies, they end the exposure. If a copy fails on any rank, all
/// ranks continue with the staged algorithm.
///
/// # Errors
/// As [`ShmSequencer::await_all`].
pub fn run(steps: &mut ShmSequencer<'_>, operation: &Operation<'_>) -> Result<()> {
    let outcome = distribute_shares(steps, operation);
    if steps.or_revoke_access(operation.recv, outcome)? {
        Ok(())
    } else {
        staged::run(steps, operation)
    }
}

/// Copies this rank's share to the other receivers. Returns false if a copy failed on any rank.
fn distribute_shares(steps: &mut ShmSequencer<'_>, operation: &Operation<'_>) -> Result<bool> {
    steps.expose_sent(operation)?;
    let (me, root) = (steps.rank(), operation.root()?);
    let own_slice = owned_slice(operation.bytes(), steps.size(), me);
    let is_complete = if me == root {
        let share = operation.send.range(&own_slice);
        steps.try_cma_write_all(steps.others(), share, own_slice.start)?
    } else {
        let from = steps.await_exposed(root)?;
        let mut is_chunk_complete = true;
        for chunk in chunks(own_slice.len(), CHUNK) {
            let start = own_slice.start + chunk.start;
            let part = operation.recv.slice(start, chunk.len());
            let receivers = steps.others().filter(|&rank| rank != root);
            is_chunk_complete = is_chunk_complete
                && steps.try_cma_read(from, start, part)?
                && steps.try_cma_write_all(receivers, part.as_src(), start)?;
        }
        is_chunk_complete
    };
    steps.close_exposure(0, is_complete)
}
