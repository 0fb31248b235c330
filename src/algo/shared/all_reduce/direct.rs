//! Vectors in arenas: each rank folds its slice of all of them where they lie, into the results of
//! all. Two hops, and no copy.

use crate::algo::Operation;
use crate::algo::fold::{Fold, contributes_as_is};
use crate::algo::pattern::slices::{chunks, owned};
use crate::algo::shared::direct::Touches;
use crate::algo::shared::steps::Steps;
use crate::base::error::Result;

/// What is folded between two looks for a failure.
const CHUNK: usize = 16 << 10;

/// Goes directly if that can be ([`Steps::directly`]); whether it has; with factors, vectors are
/// not folded as they lie.
///
/// # Errors
/// As [`Steps::directly`].
pub(super) fn run(steps: &mut Steps<'_>, operation: &Operation<'_>) -> Result<bool> {
    match contributes_as_is(operation)? {
        true => steps.directly(operation, Touches::Received, |steps| fold(steps, operation)),
        false => Ok(false),
    }
}

/// A rank alone reads and writes its slice, so that in place nothing is overwritten that is still
/// to be read.
fn fold(steps: &Steps<'_>, operation: &Operation<'_>) -> Result<()> {
    let (bytes, me, size) = (operation.bytes(), steps.rank(), steps.size());
    let (mine, fold) = (owned(bytes, size, me), Fold::of(operation)?);
    let (start, len) = (mine.start, mine.len());
    let own = (operation.send.slice(start, len), operation.recv.slice(start, len));
    let slices = |rank| match rank == me {
        true => Ok(own),
        false => Ok((steps.sent_by(rank, start, len)?, steps.received_by(rank, start, len)?)),
    };
    let slices = (0..size).map(slices).collect::<Result<Vec<_>>>()?;
    let mut twins = Vec::with_capacity(size);
    for chunk in chunks(len, CHUNK) {
        steps.check()?;
        let result = |rank: usize| slices[rank].1.slice(chunk.start, chunk.len());
        twins.clear();
        twins.extend(steps.others().map(result));
        let vector = |rank: usize| slices[rank].0.slice(chunk.start, chunk.len());
        fold.to_all((result(me), &twins), size, vector);
    }
    Ok(())
}
