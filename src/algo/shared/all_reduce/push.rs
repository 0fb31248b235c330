//! Large vectors, read and written where they lie: each rank folds its slice of all of them, and
//! writes what it has folded, while its cache still has that and the lines that it goes to, into
//! the results of all.

use super::{direct, two_shot};
use crate::algo::Operation;
use crate::algo::pattern::slices::owned;
use crate::algo::select::Shape;
use crate::algo::shared::reduce_scatter::pull::fold_part;
use crate::algo::shared::steps::Steps;
use crate::algo::table::{Algorithm, Body, REACHED_FEW};
use crate::base::error::Result;
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllReduce],
    name: "cma_write",
    description: "vectors read in the memory of their ranks, each rank folds its slice into the results of all; one hop",
    fits: REACHED_FEW,
    pays,
    ordered: true,
    body: Body::Shared(run),
};

/// From which vectors on: among ranks that have no core each, by what each folds.
fn pays(bytes: usize, shape: &Shape) -> bool {
    let least = if shape.crowded { (256 << 10) * shape.ranks } else { 192 << 10 };
    shape.pulls && bytes >= least
}

/// Directly where it can be. Else two steps: where the vectors are, and that all have been folded.
///
/// # Errors
/// As [`Steps::await_all`].
pub fn run(steps: &mut Steps<'_>, operation: &Operation<'_>) -> Result<()> {
    if direct::run(steps, operation)? {
        return Ok(());
    }
    let folded = fold(steps, operation);
    if steps.or_withdraw(operation.recv, folded)? {
        Ok(())
    } else {
        two_shot::run(steps, operation)
    }
}

/// A rank alone reads and writes its slice, so that in place nothing is overwritten that is still
/// to be read. False where memory cannot be reached.
fn fold(steps: &mut Steps<'_>, operation: &Operation<'_>) -> Result<bool> {
    if !steps.expose_all(operation, operation.recv.as_src())? {
        return Ok(false);
    }
    let mine = owned(operation.bytes(), steps.size(), steps.rank());
    let result = operation.recv.slice(mine.start, mine.len());
    fold_part(steps, operation, mine.clone(), result, |steps, chunk| {
        let folded = result.slice(chunk.start, chunk.len()).as_src();
        steps.others().try_for_each(|rank| {
            let theirs = steps.exposed(rank)?;
            steps.push(folded, theirs, mine.start + chunk.start)
        })
    })?;
    steps.close()?;
    Ok(true)
}
