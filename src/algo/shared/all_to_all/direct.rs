//! Blocks in arenas: each rank copies those for it from where they lie.

use crate::algo::Operation;
use crate::algo::shared::direct::Touches;
use crate::algo::shared::steps::Steps;
use crate::base::error::Result;
use crate::kernel;

/// Goes directly if that can be ([`Steps::directly`]); whether it has.
///
/// # Errors
/// As [`Steps::directly`].
pub(super) fn run(steps: &mut Steps<'_>, operation: &Operation<'_>) -> Result<bool> {
    let me = steps.rank();
    steps.directly(operation, Touches::Sent, |steps| {
        kernel::copy(operation.recv_block(me), operation.send_block(me));
        for rank in steps.others() {
            steps.check()?;
            let place = operation.recv_block(rank);
            // All blocks have one length.
            kernel::copy(place, steps.sent_by(rank, me * place.len(), place.len())?);
        }
        Ok(())
    })
}
