//! Blocks in arenas: each is copied once by each rank that wants it, from where it lies.

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
    steps.directly(operation, Touches::Sent, |steps| {
        kernel::copy(operation.recv_block(steps.rank()), operation.send);
        for rank in steps.others() {
            steps.check()?;
            let place = operation.recv_block(rank);
            kernel::copy(place, steps.sent_by(rank, 0, place.len())?);
        }
        Ok(())
    })
}
