//! All-gather inside a host: everybody publishes its block, everybody copies all blocks.

use super::steps::Steps;
use crate::algo::Operation;
use crate::algo::pattern::slices::chunks;
use crate::base::buffer::{Dst, Src};
use crate::base::error::Result;
use crate::kernel;
use crate::transport::line::INLINE_BYTES;

/// Blocks that fit a line.
///
/// # Errors
/// As [`Steps::await_all`].
pub fn inline(steps: &mut Steps<'_>, operation: &Operation<'_>) -> Result<()> {
    let bytes = operation.bytes();
    let mut payload = [0; INLINE_BYTES];
    let payload = &mut payload[..bytes];
    kernel::copy(Dst::from(&mut *payload), operation.send);
    steps.publish(payload)?;
    kernel::copy(operation.recv.slice(steps.rank() * bytes, bytes), operation.send);
    for rank in steps.others() {
        steps.await_rank(rank)?;
        steps.payload(rank, payload);
        kernel::copy(operation.recv.slice(rank * bytes, bytes), Src::from(&*payload));
    }
    Ok(())
}

/// Blocks of any size, a chunk at a time through the slots.
///
/// # Errors
/// As [`Steps::await_all`].
pub fn staged(steps: &mut Steps<'_>, operation: &Operation<'_>) -> Result<()> {
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
