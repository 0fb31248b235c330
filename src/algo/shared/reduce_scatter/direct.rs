//! Vectors in arenas: each rank folds its own block of all of them where they lie.

use crate::algo::Operation;
use crate::algo::fold::{Fold, contributes_as_is};
use crate::algo::pattern::slices::chunks;
use crate::algo::shared::direct::Touches;
use crate::algo::shared::steps::Steps;
use crate::base::error::Result;

/// What is folded before this rank looks whether the group has failed.
const CHUNK: usize = 1 << 20;

/// Goes directly if that can be ([`Steps::directly`]); whether it has; with factors, vectors are
/// not folded as they lie.
///
/// # Errors
/// As [`Steps::directly`].
pub(super) fn run(steps: &mut Steps<'_>, operation: &Operation<'_>) -> Result<bool> {
    match contributes_as_is(operation)? {
        true => steps.directly(operation, Touches::Sent, |steps| fold(steps, operation)),
        false => Ok(false),
    }
}

/// In place a rank writes to its block of its own vector, which nobody else reads.
fn fold(steps: &Steps<'_>, operation: &Operation<'_>) -> Result<()> {
    let (len, me, size) = (operation.recv.len(), steps.rank(), steps.size());
    let start = me * len;
    let block = |rank| match rank == me {
        true => Ok(operation.send.slice(start, len)),
        false => steps.sent_by(rank, start, len),
    };
    let blocks = (0..size).map(block).collect::<Result<Vec<_>>>()?;
    for chunk in chunks(len, CHUNK) {
        steps.check()?;
        let result = operation.recv.slice(chunk.start, chunk.len());
        let part = |rank: usize| blocks[rank].slice(chunk.start, chunk.len());
        Fold::of(operation)?.in_order(result, size, part);
    }
    Ok(())
}
