//! Reduce inside a host: everybody hands its vector to the root, which folds them. Only the root waits;
//! the others may run ahead as far as their lines and slots reach.

use super::all_reduce::fold_payloads;
use super::steps::Steps;
use crate::algo::Operation;
use crate::algo::fold::{Fold, contribute};
use crate::algo::pattern::slices::chunks;
use crate::base::buffer::Dst;
use crate::base::error::Result;
use crate::transport::line::INLINE_BYTES;

/// Vectors that fit a line.
///
/// # Errors
/// As [`Steps::await_all`].
pub fn inline(steps: &mut Steps<'_>, operation: &Operation<'_>) -> Result<()> {
    let bytes = operation.bytes();
    let mut own = [0; INLINE_BYTES];
    contribute(operation, Dst::from(&mut own[..bytes]), operation.send)?;
    if steps.rank() != operation.root()? {
        return steps.give(&own[..bytes]);
    }
    steps.note()?;
    steps.await_all()?;
    fold_payloads(steps, operation, &own)
}

/// Vectors of any size, a chunk at a time through the slots.
///
/// # Errors
/// As [`Steps::await_all`].
pub fn staged(steps: &mut Steps<'_>, operation: &Operation<'_>) -> Result<()> {
    let is_root = steps.rank() == operation.root()?;
    for chunk in chunks(operation.bytes(), steps.slot_bytes()) {
        let (start, len) = (chunk.start, chunk.len());
        let own = steps.next_slot()?.slice(0, len);
        contribute(operation, own, operation.send.slice(start, len))?;
        if !is_root {
            steps.give(&[])?;
            continue;
        }
        steps.note()?;
        steps.await_all()?;
        let result = operation.recv.slice(start, len);
        Fold::of(operation)?.in_order(result, steps.size(), |rank| steps.slot(rank).slice(0, len));
        steps.checkpoint();
    }
    Ok(())
}
