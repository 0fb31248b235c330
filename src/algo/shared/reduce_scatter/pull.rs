//! Large vectors, read where they lie: each rank folds its block of all of them.

use super::{direct, staged};
use crate::algo::Operation;
use crate::algo::fold::{Fold, contribute};
use crate::algo::pattern::slices::{chunks, part_for, share};
use crate::algo::shared::steps::Steps;
use crate::algo::table::{ATTACHED_FEW, Algorithm, Body};
use crate::base::buffer::{Dst, Src};
use crate::base::error::Result;
use crate::base::ids::Rank;
use crate::base::op::ReduceOp;
use crate::kernel;
use crate::transport::OpKind;
use std::ops::Range;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::ReduceScatter],
    name: "cma_read",
    description: "vectors read in the memory of their ranks, each rank folds its own block; one hop",
    fits: ATTACHED_FEW,
    pays: |bytes, shape| shape.pulls && !shape.crowded && bytes >= 512 << 10,
    ordered: true,
    body: Body::Shared(run),
};

/// How much is read at once of each rank, where the slots have room for more: what the second cache
/// of a core holds several times.
const MOST: usize = 256 << 10;

/// Directly where it can be. Else two steps: where the vectors are, and that all have been read.
///
/// # Errors
/// As [`Steps::await_all`].
pub fn run(steps: &mut Steps<'_>, operation: &Operation<'_>) -> Result<()> {
    if direct::run(steps, operation)? {
        return Ok(());
    }
    let len = operation.recv.len();
    let start = steps.rank() * len;
    if !steps.expose_all(operation, Src::empty())? {
        return staged::run(steps, operation);
    }
    fold_part(steps, operation, start..start + len, operation.recv, |_, _| Ok(()))?;
    steps.close()
}

/// Folds a part of the vectors that all ranks exposed with the current step, and has `then` told of
/// each chunk of it that is folded. This rank's slots hold what is read until it is folded, a part
/// for each of those ranks that stays in the cache.
pub(in crate::algo::shared) fn fold_part(
    steps: &mut Steps<'_>,
    operation: &Operation<'_>,
    part: Range<usize>,
    result: Dst<'_>,
    mut then: impl FnMut(&mut Steps<'_>, Range<usize>) -> Result<()>,
) -> Result<()> {
    let (me, size, op) = (steps.rank(), steps.size(), operation.op()?);
    let scratch = steps.own_slots()?;
    let parts = if op == ReduceOp::PremulSum { size } else { (size - 1).max(1) };
    let most = share(scratch.len(), parts).min(MOST);
    let own = operation.send.slice(part.start, part.len());
    for chunk in chunks(part.len(), most) {
        let place = |rank: Rank| scratch.slice(part_for(rank, me, size) * most, chunk.len());
        for rank in steps.others() {
            let from = steps.exposed(rank)?;
            steps.pull(from, part.start + chunk.start, place(rank))?;
            if op == ReduceOp::PremulSum {
                kernel::scale_copy(
                    operation.dtype(),
                    from.factor,
                    place(rank),
                    place(rank).as_src(),
                );
            }
        }
        let mut mine = own.slice(chunk.start, chunk.len());
        if op == ReduceOp::PremulSum {
            contribute(operation, place(me), mine)?;
            mine = place(me).as_src();
        }
        let vector = |rank| -> Src<'_> { if rank == me { mine } else { place(rank).as_src() } };
        Fold::of(operation)?.in_order(result.slice(chunk.start, chunk.len()), size, vector);
        then(steps, chunk)?;
    }
    Ok(())
}
