//! All-reduce of small vectors: each rank stages its vector, and folds the vectors of all ranks.
//! This takes one hop, but every rank reads all the data. It pays if a hop costs more than that.

use crate::algo::Operation;
use crate::algo::fold::{Fold, is_contribution_unscaled, stage_contribution};
use crate::algo::pattern::slices::chunks;
use crate::algo::row::{Algorithm, GroupShape};
use crate::algo::shared::arena_state::NO_ARENA_OFFER;
use crate::algo::shared::sequencer::ShmSequencer;
use crate::base::error::Result;
use crate::kernel::Stager;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllReduce],
    name: "one_shot",
    description: "staged in data slots, each rank reduces all vectors; one hop",
    pays,
    ..Algorithm::shared(run)
};

/// Takes one step per chunk: stage, publish, await all
/// ranks, fold. A rank folds its own vector from the caller's buffer, because the cache lines of
/// its data slot go to the peers.
///
/// # Errors
/// As [`ShmSequencer::await_all`].
pub fn run(steps: &mut ShmSequencer<'_>, operation: &Operation<'_>) -> Result<()> {
    let (rank, is_unscaled) = (steps.rank(), is_contribution_unscaled(operation)?);
    let mut stager = Stager::for_total(operation.bytes());
    for chunk in chunks(operation.bytes(), steps.slot_bytes()) {
        let (start, len) = (chunk.start, chunk.len());
        let own = operation.send.slice(start, len);
        stage_contribution(operation, &mut stager, steps.next_part(len)?, own)?;
        steps.publish(&NO_ARENA_OFFER)?;
        if steps.has_arena_offers(operation)? {
            return run(steps, operation);
        }
        steps.await_all()?;
        let result = operation.recv.slice(start, len);
        Fold::of(operation)?.fold_in_order(result, steps.size(), |peer| {
            if peer == rank && is_unscaled { own } else { steps.part(peer, len) }
        });
    }
    Ok(())
}

/// Returns whether one hop with reads of all vectors beats two hops with reads of a share. A hop
/// costs about 200 ns, or on an oversubscribed host a context switch of a few microseconds. Beyond
/// two ranks, each further rank adds its whole vector to the reads of the one-hop algorithm. Two
/// ranks stage and read the same amount with either algorithm.
fn pays(bytes: usize, shape: &GroupShape) -> bool {
    let limit = match (shape.ranks, shape.is_oversubscribed) {
        (0..=2, _) => 64 << 10,
        (ranks, true) => (128 << 10) / ranks,
        (ranks, false) => (8 << 10) / ranks,
    };
    bytes <= limit
}
