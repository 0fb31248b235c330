//! Everybody stages the vectors for all ranks, and each rank folds the ones meant for it. One hop; nothing is folded
//! that is not kept.

use crate::algo::Operation;
use crate::algo::fold::{Fold, contribute};
use crate::algo::pattern::slices::chunks;
use crate::algo::shared::steps::Steps;
use crate::algo::table::{ALWAYS, Algorithm, Body};
use crate::base::error::Result;
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::ReduceScatter],
    name: "staged",
    description: "staged in slots, each rank folds its own block; one hop",
    fits: ALWAYS,
    pays: ALWAYS,
    ordered: true,
    body: Body::Shared(run),
};

/// A slot holds one chunk for each rank, so a chunk is a `size`-th of a slot.
///
/// # Errors
/// As [`Steps::await_all`].
pub fn run(steps: &mut Steps<'_>, operation: &Operation<'_>) -> Result<()> {
    let (rank, size, bytes) = (steps.rank(), steps.size(), operation.bytes());
    let element = operation.element();
    let most = (steps.slot_bytes() / size / element).max(1) * element;
    for chunk in chunks(bytes, most) {
        let (start, len) = (chunk.start, chunk.len());
        let slot = steps.next_slot()?;
        for peer in steps.others() {
            let part = operation.send.slice(peer * bytes + start, len);
            contribute(operation, slot.slice(peer * len, len), part)?;
        }
        let own = slot.slice(rank * len, len);
        contribute(operation, own, operation.send.slice(rank * bytes + start, len))?;
        steps.publish(&[])?;
        steps.await_all()?;
        Fold::of(operation)?.in_order(operation.recv.slice(start, len), size, |peer| {
            steps.slot(peer).slice(rank * len, len)
        });
    }
    Ok(())
}
