//! Broadcast inside a host: the root publishes, the others read. The root does not wait for its readers
//! but runs ahead as far as its lines and slots reach.

use super::steps::Steps;
use crate::algo::Operation;
use crate::algo::pattern::slices::chunks;
use crate::base::buffer::{Dst, Src};
use crate::base::error::Result;
use crate::kernel;
use crate::transport::line::INLINE_BYTES;

/// Vectors that fit a line.
///
/// # Errors
/// As [`Steps::await_all`].
pub fn inline(steps: &mut Steps<'_>, operation: &Operation<'_>) -> Result<()> {
    let (bytes, root) = (operation.bytes(), operation.root()?);
    let mut payload = [0; INLINE_BYTES];
    let payload = &mut payload[..bytes];
    if steps.rank() == root {
        kernel::copy(Dst::from(&mut *payload), operation.send);
        return steps.give(payload);
    }
    steps.note()?;
    steps.await_rank(root)?;
    steps.payload(root, payload);
    kernel::copy(operation.recv, Src::from(&*payload));
    Ok(())
}

/// Vectors of any size, a chunk at a time through the root's slots.
///
/// # Errors
/// As [`Steps::await_all`].
pub fn staged(steps: &mut Steps<'_>, operation: &Operation<'_>) -> Result<()> {
    let root = operation.root()?;
    for chunk in chunks(operation.bytes(), steps.slot_bytes()) {
        let (start, len) = (chunk.start, chunk.len());
        if steps.rank() == root {
            let slot = steps.next_slot()?.slice(0, len);
            kernel::copy(slot, operation.send.slice(start, len));
            steps.give(&[])?;
            continue;
        }
        steps.note()?;
        steps.await_rank(root)?;
        kernel::copy(operation.recv.slice(start, len), steps.slot(root).slice(0, len));
        steps.checkpoint();
    }
    Ok(())
}
