//! Blocks of any size, a chunk of each at a time: everybody stages what it has for all, and copies
//! what the others have for it. One hop.

use super::direct;
use crate::algo::Operation;
use crate::algo::pattern::slices::{chunks, clipped, part_for, share, spread};
use crate::algo::shared::counts::{agree, longest, one_for_each};
use crate::algo::shared::direct::NOTHING;
use crate::algo::shared::stagers::Stagers;
use crate::algo::shared::steps::Steps;
use crate::algo::table::{ALWAYS, Algorithm, Body};
use crate::base::error::Result;
use crate::kernel;
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllToAll, OpKind::AllToAllV],
    name: "staged",
    description: "staged in slots, which hold a chunk for each rank, everybody copies its own; one hop",
    fits: ALWAYS,
    pays: ALWAYS,
    ordered: true,
    body: Body::Shared(run),
};

/// Directly where it can be. Else one step per chunk of the longest block.
///
/// # Errors
/// As [`Steps::await_all`], and `Mismatch` where a rank sends what another does not expect.
pub fn run(steps: &mut Steps<'_>, operation: &Operation<'_>) -> Result<()> {
    if direct::run(steps, operation)? {
        return Ok(());
    }
    let (me, size, all) = (steps.rank(), steps.size(), operation.recv.len());
    let others = (size - 1).max(1);
    let longest = longest(steps, operation, |steps| {
        let mine = |rank| operation.send_block(rank).len();
        one_for_each(steps, mine, |steps, rank, sent| {
            agree(steps, (rank, sent), (me, operation.recv_block(rank).len() as u64))
        })
    })?;
    let most = share(steps.slot_bytes(), others);
    let mut stagers = Stagers::of(longest);
    for chunk in chunks(longest, most) {
        let part_to = |rank| {
            let block = operation.send_block(rank);
            let part = clipped(&chunk, block.len());
            block.slice(part.start, part.len())
        };
        let part_from = |rank| {
            let block = operation.recv_block(rank);
            let part = clipped(&chunk, block.len());
            block.slice(part.start, part.len())
        };
        let each = spread(chunk.len(), most);
        let slot = steps.next_part(each * others)?;
        for rank in steps.others() {
            let part = part_to(rank);
            let place = slot.slice(part_for(rank, me, size) * each, part.len());
            stagers.to(rank).stage(place, part);
        }
        steps.publish(&NOTHING)?;
        kernel::copy_part(all, part_from(me), part_to(me));
        if steps.is_asked(operation)? {
            return run(steps, operation);
        }
        for rank in steps.others() {
            steps.await_rank(rank)?;
            let place = part_from(rank);
            let theirs = steps.part(rank, each * others);
            let part = theirs.slice(part_for(me, rank, size) * each, place.len());
            kernel::copy_part(all, place, part);
        }
    }
    Ok(())
}
