//! Everybody stages the vectors for all ranks, and each rank folds the ones meant for it. One hop;
//! nothing is folded that is not kept.

use super::direct;
use crate::algo::Operation;
use crate::algo::fold::{Fold, contribute_staged, contributes_as_is};
use crate::algo::pattern::slices::{chunks, clipped, part_for, spread};
use crate::algo::shared::direct::NOTHING;
use crate::algo::shared::stagers::Stagers;
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

/// Directly where it can be. Else a slot holds one chunk for each of the others, and for this rank
/// where it is not folded as it is.
///
/// # Errors
/// As [`Steps::await_all`].
pub fn run(steps: &mut Steps<'_>, operation: &Operation<'_>) -> Result<()> {
    if direct::run(steps, operation)? {
        return Ok(());
    }
    let (me, size, element) = (steps.rank(), steps.size(), operation.element());
    let as_is = contributes_as_is(operation)?;
    let parts = if as_is { (size - 1).max(1) } else { size };
    let most = (steps.slot_bytes() / parts / element).max(1) * element;
    let mut stagers = Stagers::of(operation.bytes());
    for chunk in chunks(operation.bytes(), most) {
        let each = spread(chunk.len(), most);
        let slot = steps.next_part(each * parts)?;
        let part_to = |rank| {
            let block = operation.send_block(rank);
            let part = clipped(&chunk, block.len());
            block.slice(part.start, part.len())
        };
        for rank in steps.others().chain((!as_is).then_some(me)) {
            let part = part_to(rank);
            let place = part_for(rank, me, size) * each;
            let place = slot.slice(place, part.len());
            contribute_staged(operation, stagers.to(rank), place, part)?;
        }
        steps.publish(&NOTHING)?;
        if steps.is_asked(operation)? {
            return run(steps, operation);
        }
        steps.await_all()?;
        let own = clipped(&chunk, operation.recv.len());
        let result = operation.recv.slice(own.start, own.len());
        Fold::of(operation)?.in_order(result, size, |rank| match rank == me && as_is {
            true => part_to(me),
            false => {
                let theirs = steps.part(rank, each * parts);
                theirs.slice(part_for(me, rank, size) * each, own.len())
            }
        });
    }
    Ok(())
}
