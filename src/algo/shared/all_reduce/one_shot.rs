//! Small vectors: everybody stages its vector, everybody folds all of them. One hop, and every rank
//! reads all the data, so it pays while a hop costs more than that.

use crate::algo::Operation;
use crate::algo::fold::{Fold, contribute};
use crate::algo::pattern::slices::chunks;
use crate::algo::shared::steps::Steps;
use crate::base::error::Result;

/// One step per chunk: stage, publish, await all, fold.
///
/// # Errors
/// As [`Steps::await_all`].
pub fn run(steps: &mut Steps<'_>, operation: &Operation<'_>) -> Result<()> {
    for chunk in chunks(operation.bytes(), steps.slot_bytes()) {
        let (start, len) = (chunk.start, chunk.len());
        let own = steps.next_slot()?.slice(0, len);
        contribute(operation, own, operation.send.slice(start, len))?;
        steps.publish(&[])?;
        steps.await_all()?;
        let result = operation.recv.slice(start, len);
        Fold::of(operation)?.in_order(result, steps.size(), |rank| steps.slot(rank).slice(0, len));
    }
    Ok(())
}
