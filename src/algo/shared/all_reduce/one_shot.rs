//! All-reduce of small vectors: each rank stages its vector (copies it to its data slot), and folds
//! the vectors of all ranks. This takes one hop, but every rank reads the vectors of all ranks. The
//! algorithm pays if a second hop would take longer than these reads.

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

/// Runs the algorithm in one step per chunk. In each step, a rank stages its chunk, publishes the
/// step, awaits all ranks, and folds. For the fold, it reads its own vector from the caller's
/// buffer, because the cache lines of its data slot move to the cores of the peers.
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

/// Returns whether this algorithm is faster than the two-shot algorithm. This algorithm takes one
/// hop, in which each rank reads all vectors. The two-shot algorithm takes two hops, in which each
/// rank reads its share of all vectors. A hop takes about 200 ns; on an oversubscribed host it
/// takes a context switch of a few microseconds.
///
/// With two ranks, both algorithms stage and read the same amount. With more ranks, each additional
/// rank adds its whole vector to the reads of this algorithm.
fn pays(bytes: usize, shape: &GroupShape) -> bool {
    let limit = match (shape.ranks, shape.is_oversubscribed) {
        (0..=2, _) => 64 << 10,
        (ranks, true) => (128 << 10) / ranks,
        (ranks, false) => (8 << 10) / ranks,
    };
    bytes <= limit
}
