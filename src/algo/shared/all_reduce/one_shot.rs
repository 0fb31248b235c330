//! Small vectors: everybody stages its vector, everybody folds all of them. One hop, and every rank
//! reads all the data, so it pays while a hop costs more than that.

use super::direct;
use crate::algo::Operation;
use crate::algo::fold::{Fold, contribute_staged, contributes_as_is};
use crate::algo::pattern::slices::chunks;
use crate::algo::select::Shape;
use crate::algo::shared::direct::NOTHING;
use crate::algo::shared::steps::Steps;
use crate::algo::table::{ALWAYS, Algorithm, Body};
use crate::base::error::Result;
use crate::kernel::Stager;
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllReduce],
    name: "one_shot",
    description: "staged in slots, everybody folds all vectors; one hop",
    fits: ALWAYS,
    pays,
    ordered: true,
    body: Body::Shared(run),
};

/// Directly where it can be. Else one step per chunk: stage, publish, await all, fold. The own
/// vector is folded where the caller has it: the others take what is staged away.
///
/// # Errors
/// As [`Steps::await_all`].
pub fn run(steps: &mut Steps<'_>, operation: &Operation<'_>) -> Result<()> {
    if direct::run(steps, operation)? {
        return Ok(());
    }
    let (rank, as_is) = (steps.rank(), contributes_as_is(operation)?);
    let mut stager = Stager::of(operation.bytes());
    for chunk in chunks(operation.bytes(), steps.slot_bytes()) {
        let (start, len) = (chunk.start, chunk.len());
        let own = operation.send.slice(start, len);
        contribute_staged(operation, &mut stager, steps.next_part(len)?, own)?;
        steps.publish(&NOTHING)?;
        if steps.is_asked(operation)? {
            return run(steps, operation);
        }
        steps.await_all()?;
        let result = operation.recv.slice(start, len);
        Fold::of(operation)?.in_order(result, steps.size(), |peer| {
            if peer == rank && as_is { own } else { steps.part(peer, len) }
        });
    }
    Ok(())
}

/// Up to which size one hop with all the reading beats two hops with a share of it. A hop costs
/// about 200 ns, or a context switch of a few microseconds where ranks outnumber cores; beyond two
/// ranks each further one adds its whole vector to what one hop reads. Two ranks stage and read the
/// same either way.
fn pays(bytes: usize, shape: &Shape) -> bool {
    let limit = match (shape.ranks, shape.crowded) {
        (0..=2, _) => 64 << 10,
        (ranks, true) => (128 << 10) / ranks,
        (ranks, false) => (8 << 10) / ranks,
    };
    bytes <= limit
}
