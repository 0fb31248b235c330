//! Vectors of any size, a chunk at a time: everybody stages its vector, the root folds all. Only
//! the root waits; the others may run ahead as far as their slots reach.

use crate::algo::Operation;
use crate::algo::fold::{Fold, contribute_staged};
use crate::algo::pattern::slices::chunks;
use crate::algo::shared::steps::Steps;
use crate::algo::table::{ALWAYS, Algorithm, Body};
use crate::base::error::Result;
use crate::kernel::Stager;
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Reduce],
    name: "staged",
    description: "staged in slots, the root folds",
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
    let is_root = steps.rank() == operation.root()?;
    let mut stager = Stager::of(operation.bytes());
    for chunk in chunks(operation.bytes(), steps.slot_bytes()) {
        let (start, len) = (chunk.start, chunk.len());
        let own = steps.next_part(len)?;
        contribute_staged(operation, &mut stager, own, operation.send.slice(start, len))?;
        if !is_root {
            steps.give(&[])?;
            continue;
        }
        steps.note()?;
        steps.await_all()?;
        let result = operation.recv.slice(start, len);
        Fold::of(operation)?.in_order(result, steps.size(), |rank| steps.part(rank, len));
        steps.checkpoint();
    }
    Ok(())
}
