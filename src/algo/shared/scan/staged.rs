//! Scan and exscan of vectors of any size, one chunk at a time. Each rank stages its chunk (copies
//! it to its data slot), and folds the chunks of the ranks before it. For a scan, it also folds its
//! own chunk.

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
    kinds: &[OpKind::Scan, OpKind::Exscan],
    name: "staged",
    description: "staged in data slots, each rank reduces the vectors of the ranks before it",
    ..Algorithm::shared(run)
};

/// Runs the algorithm in one step per chunk. All ranks wait for each other in each step, so every
/// data slot is free two steps later.
///
/// # Errors
/// As [`ShmSequencer::await_all`].
pub fn run(steps: &mut ShmSequencer<'_>, operation: &Operation<'_>) -> Result<()> {
    let vectors = operation.descriptor.kind.prefix_len(steps.rank());
    let fold = Fold::of(operation)?;
    let mut stager = Stager::for_total(operation.bytes());
    for chunk in chunks(operation.bytes(), steps.slot_bytes()) {
        let (start, len) = (chunk.start, chunk.len());
        let own = steps.next_part(len)?;
        stage_contribution(operation, &mut stager, own, operation.send.slice(start, len))?;
        steps.publish(&[])?;
        steps.await_all()?;
        if vectors > 0 {
            let result = operation.recv.slice(start, len);
            fold.fold_in_order(result, vectors, |rank| steps.part(rank, len));
        }
    }
    Ok(())
}
