//! All-reduce of larger vectors: each rank owns a slice, folds that slice of all vectors, and
//! gathers the folded slices of the other ranks. This takes two hops. Each rank reads about as many
//! bytes as two vectors have, independently of the number of ranks.

use crate::algo::Operation;
use crate::algo::fold::{Fold, is_contribution_unscaled, stage_contribution};
use crate::algo::pattern::slices::{chunks, max_slice_bytes, owned_slice};
use crate::algo::row::Algorithm;
use crate::algo::shared::arena_state::NO_ARENA_OFFER;
use crate::algo::shared::sequencer::ShmSequencer;
use crate::algo::shared::stagers::RankStagers;
use crate::base::buffer::{Dst, Src};
use crate::base::error::Result;
use crate::base::ids::WorldSize;
use crate::kernel::{self, Stager};
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllReduce],
    name: "two_shot",
    description: "staged in data slots, each rank reduces its slice, all gather; two hops",
    ..Algorithm::shared(run)
};

/// Runs the algorithm in two steps per chunk:
///
/// 1. Each rank stages the slices that its peers fold, publishes the step, and awaits all ranks. It
///    then folds its own slice of all vectors into its receive buffer and into its next data slot.
///    For the fold, it reads its own vector from the caller's buffer.
/// 2. Each rank publishes that data slot, awaits the other ranks, and copies their folded slices.
///
/// # Errors
/// As [`ShmSequencer::await_all`].
pub fn run(steps: &mut ShmSequencer<'_>, operation: &Operation<'_>) -> Result<()> {
    let (rank, size, is_unscaled) =
        (steps.rank(), steps.size(), is_contribution_unscaled(operation)?);
    let bytes_per_rank = operation.bytes() / size;
    let (mut stagers, mut gatherer) =
        (RankStagers::of(bytes_per_rank), Stager::for_total(bytes_per_rank));
    for chunk in chunks(operation.bytes(), steps.slot_bytes()) {
        let (start, len) = (chunk.start, chunk.len());
        let own = operation.send.slice(start, len);
        let slot = steps.next_part(len)?;
        for peer in steps.others().chain((!is_unscaled).then_some(rank)) {
            let theirs = owned_slice(len, size, peer);
            let (part, own) = (slot.range(&theirs), own.range(&theirs));
            stage_contribution(operation, stagers.stager_for(peer), part, own)?;
        }
        steps.publish(&NO_ARENA_OFFER)?;
        if steps.has_arena_offers(operation)? {
            return run(steps, operation);
        }
        steps.await_all()?;

        let own_slice = owned_slice(len, size, rank);
        let slot_bytes_used = max_slice_bytes(len, size);
        let folded = steps.next_part(slot_bytes_used)?.slice(0, own_slice.len());
        let result = operation.recv.slice(start + own_slice.start, own_slice.len());
        let vector = |peer| {
            let vector = if peer == rank && is_unscaled { own } else { steps.part(peer, len) };
            vector.range(&own_slice)
        };
        fold_to_both(&mut gatherer, Fold::of(operation)?, size, result, folded, vector);
        steps.publish(&[])?;

        for peer in steps.others() {
            steps.await_rank(peer)?;
            let theirs = owned_slice(len, size, peer);
            let result = operation.recv.slice(start + theirs.start, theirs.len());
            kernel::copy(result, steps.part(peer, slot_bytes_used).slice(0, theirs.len()));
        }
    }
    Ok(())
}

/// The number of bytes that a rank folds at once if the cache lines of its data slot are far away.
/// It is so small that the L1 cache still holds the folded data when the rank copies the data to
/// the slot.
const FAR_FOLD_BYTES: usize = 16 << 10;

/// Folds the vectors into `result` and into the data slot `slot`. The caches of the peers hold the
/// cache lines of the slot since the peers last read it. If these lines are near, the fold stores
/// to both destinations. If they are far, the fold stores to `result`, and `stager` copies the data
/// to the slot.
fn fold_to_both<'a>(
    stager: &mut Stager,
    fold: Fold,
    size: WorldSize,
    result: Dst<'_>,
    slot: Dst<'_>,
    vector: impl Fn(usize) -> Src<'a>,
) {
    let mut done = 0;
    while done < result.len() {
        let (probe_len, rest) = (stager.probe_len(), result.len() - done);
        let is_near = probe_len == 0 && !stager.is_far();
        let len = match (is_near, probe_len) {
            (true, _) => rest,
            (false, 0) => rest.min(FAR_FOLD_BYTES),
            (false, _) => rest.min(probe_len),
        };
        let (into, slot_part) = (result.slice(done, len), slot.slice(done, len));
        let part = |peer| vector(peer).slice(done, len);
        if is_near {
            fold.fold_to_all(slot_part, &[into], size, part);
            stager.record_staged(len);
        } else {
            fold.fold_in_order(into, size, part);
            stager.stage(slot_part, into.as_src());
        }
        done += len;
    }
}
