//! All-reduce on arenas: each rank folds its slice of all vectors in place, and stores it to the
//! results of all ranks. This takes two hops and no extra copy.

use crate::algo::Operation;
use crate::algo::fold::{Fold, is_contribution_unscaled};
use crate::algo::pattern::slices::{chunks, owned_slice};
use crate::algo::shared::arena_access::PeerAccess;
use crate::algo::shared::sequencer::ShmSequencer;
use crate::base::error::Result;

/// The number of bytes that a rank folds between two checks for a failure.
const CHUNK: usize = 16 << 10;

/// Runs in place if possible ([`ShmSequencer::run_in_arenas`]). Returns whether it did. If the
/// operator uses factors, the vectors cannot be folded in place.
///
/// # Errors
/// As [`ShmSequencer::run_in_arenas`].
pub(super) fn run(steps: &mut ShmSequencer<'_>, operation: &Operation<'_>) -> Result<bool> {
    match is_contribution_unscaled(operation)? {
        true => steps.run_in_arenas(operation, PeerAccess::WritesRecvBuffers, |steps| {
            fold_own_slice(steps, operation)
        }),
        false => Ok(false),
    }
}

/// Folds this rank's slice of all vectors. Only this rank reads and writes the slice, so an
/// in-place call overwrites no input that another rank still reads.
fn fold_own_slice(steps: &ShmSequencer<'_>, operation: &Operation<'_>) -> Result<()> {
    let (bytes, me, size) = (operation.bytes(), steps.rank(), steps.size());
    let (own_slice, fold) = (owned_slice(bytes, size, me), Fold::of(operation)?);
    let (start, len) = (own_slice.start, own_slice.len());
    let own = (operation.send.slice(start, len), operation.recv.slice(start, len));
    let slices = |rank| match rank == me {
        true => Ok(own),
        false => {
            Ok((steps.peer_send_part(rank, start, len)?, steps.peer_recv_part(rank, start, len)?))
        }
    };
    let slices = (0..size).map(slices).collect::<Result<Vec<_>>>()?;
    let mut extra_dsts = Vec::with_capacity(size);
    for chunk in chunks(len, CHUNK) {
        steps.check_failure()?;
        let result = |rank: usize| slices[rank].1.slice(chunk.start, chunk.len());
        extra_dsts.clear();
        extra_dsts.extend(steps.others().map(result));
        let vector = |rank: usize| slices[rank].0.slice(chunk.start, chunk.len());
        fold.fold_to_all((result(me), &extra_dsts), size, vector);
    }
    Ok(())
}
