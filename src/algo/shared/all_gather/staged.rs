//! Blocks of any size, a chunk at a time through the slots: everybody stages its block, everybody copies all blocks.

use crate::algo::Operation;
use crate::algo::pattern::slices::chunks;
use crate::algo::shared::steps::Steps;
use crate::algo::table::{ALWAYS, Algorithm, Body};
use crate::base::error::Result;
use crate::kernel;
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllGather],
    name: "staged",
    description: "blocks staged in slots, everybody copies all",
    fits: ALWAYS,
    pays: ALWAYS,
    ordered: true,
    body: Body::Shared(run),
};

/// One step per chunk.
///
/// # Errors
/// As [`Steps::await_all`].
pub fn run(steps: &mut Steps<'_>, operation: &Operation<'_>) -> Result<()> {
    let bytes = operation.bytes();
    for chunk in chunks(bytes, steps.slot_bytes()) {
        let (start, len) = (chunk.start, chunk.len());
        let block = operation.send.slice(start, len);
        let slot = steps.next_slot()?.slice(0, len);
        kernel::copy(slot, block);
        steps.publish(&[])?;
        kernel::copy(operation.recv.slice(steps.rank() * bytes + start, len), block);
        for rank in steps.others() {
            steps.await_rank(rank)?;
            let place = operation.recv.slice(rank * bytes + start, len);
            kernel::copy(place, steps.slot(rank).slice(0, len));
        }
    }
    Ok(())
}
