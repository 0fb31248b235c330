//! Large vectors, in as many shares as there are ranks: each receiver reads one where the root has
//! it, and writes it to the other receivers; the root writes one to all. So all copy at the same
//! time, and each as much as any other. (A scatter and an all-gather, as in van de Geijn's
//! broadcast, at once.)

use super::staged;
use crate::algo::Operation;
use crate::algo::pattern::slices::{chunks, owned};
use crate::algo::shared::steps::Steps;
use crate::algo::table::{Algorithm, Body, REACHED};
use crate::base::error::Result;
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Broadcast],
    name: "cma_write",
    description: "read in the root's memory, a share by each rank, and written to that of the others; one hop",
    fits: REACHED,
    pays: |bytes, shape| shape.pulls && !shape.crowded && bytes >= 192 << 10,
    ordered: true,
    body: Body::Shared(run),
};

/// What is written from the cache that it was read into.
const CHUNK: usize = 256 << 10;

/// Two steps: where the vectors lie, and that all shares are everywhere.
///
/// # Errors
/// As [`Steps::await_all`].
pub fn run(steps: &mut Steps<'_>, operation: &Operation<'_>) -> Result<()> {
    let shared = share(steps, operation);
    if steps.or_withdraw(operation.recv, shared)? { Ok(()) } else { staged::run(steps, operation) }
}

/// False where memory cannot be reached.
fn share(steps: &mut Steps<'_>, operation: &Operation<'_>) -> Result<bool> {
    steps.expose_sent(operation)?;
    let (me, root) = (steps.rank(), operation.root()?);
    let mine = owned(operation.bytes(), steps.size(), me);
    let reached = if me == root {
        let share = operation.send.slice(mine.start, mine.len());
        steps.try_push_to_all(steps.others(), share, mine.start)?
    } else {
        let from = steps.exposed(root)?;
        let mut reached = true;
        for chunk in chunks(mine.len(), CHUNK) {
            let start = mine.start + chunk.start;
            let part = operation.recv.slice(start, chunk.len());
            let receivers = steps.others().filter(|&rank| rank != root);
            reached = reached
                && steps.try_pull(from, start, part)?
                && steps.try_push_to_all(receivers, part.as_src(), start)?;
        }
        reached
    };
    steps.close_tried(reached)
}
