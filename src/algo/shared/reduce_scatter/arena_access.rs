//! Vectors in arenas: each rank folds its own block of all of them where they lie.

use crate::algo::Operation;
use crate::algo::fold::{Fold, is_contribution_unscaled};
use crate::algo::pattern::slices::chunks;
use crate::algo::shared::arena_access::PeerAccess;
use crate::algo::shared::sequencer::ShmSequencer;
use crate::base::error::Result;

/// What is folded before this rank looks whether the group has failed.
const CHUNK: usize = 1 << 20;

/// Goes directly if that can be ([`ShmSequencer::run_in_arenas`]); whether it has; with factors,
/// vectors are not folded as they lie.
///
/// # Errors
/// As [`ShmSequencer::run_in_arenas`].
pub(super) fn run(steps: &mut ShmSequencer<'_>, operation: &Operation<'_>) -> Result<bool> {
    match is_contribution_unscaled(operation)? {
        true => steps.run_in_arenas(operation, PeerAccess::ReadsSendBuffers, |steps| {
            fold_own_block(steps, operation)
        }),
        false => Ok(false),
    }
}

/// In place a rank writes to its block of its own vector, which nobody else reads.
fn fold_own_block(steps: &ShmSequencer<'_>, operation: &Operation<'_>) -> Result<()> {
    let (len, me, size) = (operation.recv.len(), steps.rank(), steps.size());
    let start = me * len;
    let block = |rank| match rank == me {
        true => Ok(operation.send.slice(start, len)),
        false => steps.peer_send_part(rank, start, len),
    };
    let blocks = (0..size).map(block).collect::<Result<Vec<_>>>()?;
    for chunk in chunks(len, CHUNK) {
        steps.check_failure()?;
        let result = operation.recv.slice(chunk.start, chunk.len());
        let part = |rank: usize| blocks[rank].slice(chunk.start, chunk.len());
        Fold::of(operation)?.fold_in_order(result, size, part);
    }
    Ok(())
}
