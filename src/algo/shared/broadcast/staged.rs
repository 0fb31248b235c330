//! Vectors of any size, a chunk at a time through the root's slots. The root does not wait for its readers but runs
//! ahead as far as its slots reach.

use crate::algo::Operation;
use crate::algo::pattern::slices::chunks;
use crate::algo::shared::steps::Steps;
use crate::algo::table::{ALWAYS, Algorithm, Body};
use crate::base::error::Result;
use crate::kernel;
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Broadcast],
    name: "staged",
    description: "through the root's slots",
    fits: ALWAYS,
    pays: ALWAYS,
    ordered: true,
    body: Body::Shared(run),
};

/// One step per chunk.
///
/// # Errors
/// As [`Steps::await_all`].
pub fn run(steps: &mut Steps<'_>, operation: &Operation<'_>) -> Result<()> {
    let root = operation.root()?;
    for chunk in chunks(operation.bytes(), steps.slot_bytes()) {
        let (start, len) = (chunk.start, chunk.len());
        if steps.rank() == root {
            let slot = steps.next_slot()?.slice(0, len);
            kernel::copy(slot, operation.send.slice(start, len));
            steps.give(&[])?;
            continue;
        }
        steps.note()?;
        steps.await_rank(root)?;
        kernel::copy(operation.recv.slice(start, len), steps.slot(root).slice(0, len));
        steps.checkpoint();
    }
    Ok(())
}
