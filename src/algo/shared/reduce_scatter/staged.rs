//! Everybody stages the vectors for all ranks, and each rank folds the ones meant for it. One hop; nothing is folded
//! that is not kept.

use super::direct;
use crate::algo::Operation;
use crate::algo::fold::{Fold, contribute, contributes_as_is};
use crate::algo::pattern::slices::{chunks, clipped};
use crate::algo::shared::direct::NOTHING;
use crate::algo::shared::steps::Steps;
use crate::algo::table::{ALWAYS, Algorithm, Body};
use crate::base::error::Result;
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::ReduceScatter, OpKind::ReduceScatterV],
    name: "staged",
    description: "staged in slots, each rank folds its own block; one hop",
    fits: ALWAYS,
    pays: ALWAYS,
    ordered: true,
    body: Body::Shared(run),
};

/// Directly where it can be. Else a slot holds one chunk for each rank, so a chunk is a `size`-th of a slot.
///
/// # Errors
/// As [`Steps::await_all`].
pub fn run(steps: &mut Steps<'_>, operation: &Operation<'_>) -> Result<()> {
    if direct::run(steps, operation)? {
        return Ok(());
    }
    let (me, size, element) = (steps.rank(), steps.size(), operation.element());
    let most = (steps.slot_bytes() / size / element).max(1) * element;
    let as_is = contributes_as_is(operation)?;
    for chunk in chunks(operation.bytes(), most) {
        let slot = steps.next_slot()?;
        let part_for = |rank| {
            let block = operation.send_block(rank);
            let part = clipped(&chunk, block.len());
            block.slice(part.start, part.len())
        };
        for rank in steps.others().chain((!as_is).then_some(me)) {
            let part = part_for(rank);
            contribute(operation, slot.slice(rank * most, part.len()), part)?;
        }
        steps.publish(&NOTHING)?;
        if steps.is_asked(operation)? {
            return run(steps, operation);
        }
        steps.await_all()?;
        let own = clipped(&chunk, operation.recv.len());
        let result = operation.recv.slice(own.start, own.len());
        Fold::of(operation)?.in_order(result, size, |rank| match rank == me && as_is {
            true => part_for(me),
            false => steps.slot(rank).slice(me * most, own.len()),
        });
    }
    Ok(())
}
