//! Vectors of any size, a chunk at a time through the root's slots. The root does not wait for its
//! readers but runs ahead as far as its slots reach.

use crate::algo::Operation;
use crate::algo::pattern::slices::chunks;
use crate::algo::shared::sequencer::ShmSequencer;
use crate::algo::table::{ALWAYS, Algorithm, AlgorithmBody};
use crate::base::error::Result;
use crate::kernel::{self, Stager};
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Broadcast],
    name: "staged",
    description: "through the root's slots",
    fits: ALWAYS,
    pays: ALWAYS,
    ordered: true,
    body: AlgorithmBody::Shared(run),
};

/// How many chunks a vector is made of, so that readers copy the first one while the root is at the
/// next, and the least of one, which takes some times as long as what comes with it.
const CHUNK_COUNT_AND_MIN_BYTES: (usize, usize) = (8, 2 << 10);
/// The same where each wait takes a context switch: no more than there are slots, so that the root
/// waits for nobody.
const OVERSUBSCRIBED_CHUNK_COUNT_AND_MIN_BYTES: (usize, usize) = (4, 16 << 10);

/// The bytes of a chunk.
fn chunk_bytes(bytes: usize, steps: &ShmSequencer<'_>) -> usize {
    let (count, least) = if steps.is_oversubscribed() {
        OVERSUBSCRIBED_CHUNK_COUNT_AND_MIN_BYTES
    } else {
        CHUNK_COUNT_AND_MIN_BYTES
    };
    let most = steps.slot_bytes();
    (bytes / count).next_multiple_of(least).clamp(least.min(most), most)
}

/// One step per chunk.
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
