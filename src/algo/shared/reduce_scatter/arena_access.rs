//! Reduce-scatter on arenas: each rank folds its own block of all vectors, directly from the
//! owners' arenas.

use crate::algo::Operation;
use crate::algo::fold::{Fold, is_contribution_unscaled};
use crate::algo::pattern::slices::chunks;
use crate::algo::shared::arena_access::PeerAccess;
use crate::algo::shared::sequencer::ShmSequencer;
use crate::base::error::Result;

/// The number of bytes that a rank folds between two checks for a failure of the group.
const CHUNK: usize = 1 << 20;

/// Runs in place if possible ([`ShmSequencer::run_in_arenas`]). Returns whether it did. If the
/// operator uses factors, the vectors cannot be folded in place.
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

/// Folds this rank's block of all vectors. In an in-place call a rank writes to its block of its
/// own vector, which no other rank reads.
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
