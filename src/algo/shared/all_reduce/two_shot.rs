//! Larger vectors: each rank owns a slice, folds that slice of all vectors, and everybody gathers
//! the folded slices. Two hops, and each rank reads two vectors' worth whatever the number of
//! ranks.

use super::direct;
use crate::algo::Operation;
use crate::algo::fold::{Fold, contribute_staged, contributes_as_is};
use crate::algo::pattern::slices::{chunks, longest, owned};
use crate::algo::shared::direct::NOTHING;
use crate::algo::shared::stagers::Stagers;
use crate::algo::shared::steps::Steps;
use crate::algo::table::{ALWAYS, Algorithm, Body};
use crate::base::buffer::{Dst, Src};
use crate::base::error::Result;
use crate::base::ids::WorldSize;
use crate::kernel::{self, Stager};
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllReduce],
    name: "two_shot",
    description: "staged in slots, each rank folds its slice, all gather; two hops",
    fits: ALWAYS,
    pays: ALWAYS,
    ordered: true,
    body: Body::Shared(run),
};

/// Directly where it can be. Else two steps per chunk: stage what others fold, publish, await all,
/// fold the own slice, for the others and into the result; publish it, await all, gather. The own
/// slice of the own vector is folded where the caller has it.
///
/// # Errors
/// As [`Steps::await_all`].
pub fn run(steps: &mut Steps<'_>, operation: &Operation<'_>) -> Result<()> {
    if direct::run(steps, operation)? {
        return Ok(());
    }
    let (rank, size, as_is) = (steps.rank(), steps.size(), contributes_as_is(operation)?);
    let each = operation.bytes() / size;
    let (mut stagers, mut gatherer) = (Stagers::of(each), Stager::of(each));
    for chunk in chunks(operation.bytes(), steps.slot_bytes()) {
        let (start, len) = (chunk.start, chunk.len());
        let own = operation.send.slice(start, len);
        let slot = steps.next_part(len)?;
        for peer in steps.others().chain((!as_is).then_some(rank)) {
            let theirs = owned(len, size, peer);
            let part = slot.slice(theirs.start, theirs.len());
            let own = own.slice(theirs.start, theirs.len());
            contribute_staged(operation, stagers.to(peer), part, own)?;
        }
        steps.publish(&NOTHING)?;
        if steps.is_asked(operation)? {
            return run(steps, operation);
        }
        steps.await_all()?;

        let mine = owned(len, size, rank);
        let room = longest(len, size);
        let folded = steps.next_part(room)?.slice(0, mine.len());
        let result = operation.recv.slice(start + mine.start, mine.len());
        let vector = |peer| {
            let vector = if peer == rank && as_is { own } else { steps.part(peer, len) };
            vector.slice(mine.start, mine.len())
        };
        fold_to_both(&mut gatherer, (Fold::of(operation)?, size), (result, folded), vector);
        steps.publish(&[])?;

        for peer in steps.others() {
            steps.await_rank(peer)?;
            let theirs = owned(len, size, peer);
            let result = operation.recv.slice(start + theirs.start, theirs.len());
            kernel::copy(result, steps.part(peer, room).slice(0, theirs.len()));
        }
    }
    Ok(())
}

/// How much is folded at once where the slot's lines are far away: what is copied there then is
/// still in the nearest cache.
const PIECE: usize = 16 << 10;

/// Folds into the result, and into a slot that others have read before.
fn fold_to_both<'a>(
    stager: &mut Stager,
    (fold, size): (Fold, WorldSize),
    (result, slot): (Dst<'_>, Dst<'_>),
    vector: impl Fn(usize) -> Src<'a>,
) {
    let mut done = 0;
    while done < result.len() {
        let (feeler, rest) = (stager.feeler(), result.len() - done);
        let is_near = feeler == 0 && !stager.is_far();
        let len = match (is_near, feeler) {
            (true, _) => rest,
            (false, 0) => rest.min(PIECE),
            (false, _) => rest.min(feeler),
        };
        let (into, beside) = (result.slice(done, len), slot.slice(done, len));
        let part = |peer| vector(peer).slice(done, len);
        if is_near {
            fold.to_all((beside, &[into]), size, part);
            stager.note(len);
        } else {
            fold.in_order(into, size, part);
            stager.stage(beside, into.as_src());
        }
        done += len;
    }
}
