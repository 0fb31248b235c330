//! Reduce of vectors of any size, one chunk at a time: each rank stages its chunk (copies it to its
//! data slot), and the root folds the chunks of all ranks. Only the root waits. Another rank may
//! run ahead until all its data slots contain chunks that the root has not read.

use crate::algo::Operation;
use crate::algo::fold::{Fold, stage_contribution};
use crate::algo::pattern::slices::chunks;
use crate::algo::row::Algorithm;
use crate::algo::shared::sequencer::ShmSequencer;
use crate::base::error::Result;
use crate::kernel::Stager;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Reduce],
    name: "staged",
    description: "staged in data slots, the root reduces",
    ..Algorithm::shared(run)
};

/// Runs the algorithm in one step per chunk.
///
/// # Errors
/// As [`ShmSequencer::await_all`].
pub fn run(steps: &mut ShmSequencer<'_>, operation: &Operation<'_>) -> Result<()> {
    let is_root = steps.rank() == operation.root()?;
    let mut stager = Stager::for_total(operation.bytes());
    for chunk in chunks(operation.bytes(), steps.slot_bytes()) {
        let (start, len) = (chunk.start, chunk.len());
        let own = steps.next_part(len)?;
        stage_contribution(operation, &mut stager, own, operation.send.slice(start, len))?;
        if !is_root {
            steps.publish_finished(&[])?;
            continue;
        }
        steps.publish_unnotified()?;
        steps.await_all()?;
        let result = operation.recv.slice(start, len);
        Fold::of(operation)?.fold_in_order(result, steps.size(), |rank| steps.part(rank, len));
        steps.checkpoint();
    }
    Ok(())
}
