//! Broadcast of vectors of any size, one chunk at a time through the root's data slots. The root
//! does not wait for its readers. It may run ahead until all its data slots contain chunks that a
//! rank has not read.

use crate::algo::Operation;
use crate::algo::pattern::slices::chunks;
use crate::algo::row::Algorithm;
use crate::algo::shared::sequencer::ShmSequencer;
use crate::base::error::Result;
use crate::kernel::{self, Stager};
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Broadcast],
    name: "staged",
    description: "through the root's data slots",
    ..Algorithm::shared(run)
};

/// The number of chunks of a vector, and the minimum chunk size in bytes. With several chunks, the
/// readers copy one chunk while the root stages the next one. The minimum is so large that the copy
/// of a chunk takes several times as long as the overhead of its step.
const CHUNK_COUNT_AND_MIN_BYTES: (usize, usize) = (8, 2 << 10);
/// The same numbers for an oversubscribed host, where each wait takes a context switch. The number
/// of chunks is the number of data slots, so that the root can stage the whole vector without a
/// wait.
const OVERSUBSCRIBED_CHUNK_COUNT_AND_MIN_BYTES: (usize, usize) = (4, 16 << 10);

/// Returns the chunk size in bytes.
fn chunk_bytes(bytes: usize, steps: &ShmSequencer<'_>) -> usize {
    let (count, least) = if steps.is_oversubscribed() {
        OVERSUBSCRIBED_CHUNK_COUNT_AND_MIN_BYTES
    } else {
        CHUNK_COUNT_AND_MIN_BYTES
    };
    let most = steps.slot_bytes();
    (bytes / count).next_multiple_of(least).clamp(least.min(most), most)
}

/// Runs the algorithm in one step per chunk.
///
/// # Errors
/// As [`ShmSequencer::await_all`].
pub fn run(steps: &mut ShmSequencer<'_>, operation: &Operation<'_>) -> Result<()> {
    let root = operation.root()?;
    let mut stager = Stager::for_total(operation.bytes());
    for chunk in chunks(operation.bytes(), chunk_bytes(operation.bytes(), steps)) {
        let (start, len) = (chunk.start, chunk.len());
        if steps.rank() == root {
            let slot = steps.next_part(len)?;
            stager.stage(slot, operation.send.slice(start, len));
            steps.publish_finished(&[])?;
            continue;
        }
        steps.publish_unnotified()?;
        steps.await_rank(root)?;
        let dst = operation.recv.slice(start, len);
        kernel::copy_part(operation.bytes(), dst, steps.part(root, len));
        steps.checkpoint();
    }
    Ok(())
}
