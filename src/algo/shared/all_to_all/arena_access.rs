//! All-to-all on arenas: each rank copies the blocks for it directly from the senders' arenas.

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
    let me = steps.rank();
    steps.run_in_arenas(operation, PeerAccess::ReadsSendBuffers, |steps| {
        kernel::copy(operation.recv_block(me), operation.send_block(me));
        for rank in steps.others() {
            steps.check_failure()?;
            let recv_block = operation.recv_block(rank);
            // All blocks have the same length.
            kernel::copy(
                recv_block,
                steps.peer_send_part(rank, me * recv_block.len(), recv_block.len())?,
            );
        }
        Ok(())
    })
}
