//! All-gather on arenas: each receiver copies each block once, directly from its owner's arena.

use crate::algo::Operation;
use crate::algo::shared::arena_access::PeerAccess;
use crate::algo::shared::sequencer::ShmSequencer;
use crate::base::error::Result;
use crate::kernel;

/// Runs in place if possible ([`ShmSequencer::run_in_arenas`]). Returns whether it did.
///
/// # Errors
/// As [`ShmSequencer::run_in_arenas`].
pub(super) fn run(steps: &mut ShmSequencer<'_>, operation: &Operation<'_>) -> Result<bool> {
    steps.run_in_arenas(operation, PeerAccess::ReadsSendBuffers, |steps| {
        kernel::copy(operation.recv_block(steps.rank()), operation.send);
        for rank in steps.others() {
            steps.check_failure()?;
            let recv_block = operation.recv_block(rank);
            kernel::copy(recv_block, steps.peer_send_part(rank, 0, recv_block.len())?);
        }
        Ok(())
    })
}
