//! Large vectors, read where they lie: each rank folds its slice of all of them, and everybody
//! reads the folded slices.

use super::{direct, two_shot};
use crate::algo::Operation;
use crate::algo::pattern::slices::owned;
use crate::algo::shared::reduce_scatter::pull::fold_part;
use crate::algo::shared::steps::Steps;
use crate::algo::table::{ATTACHED_FEW, Algorithm, Body};
use crate::base::error::Result;
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllReduce],
    name: "cma_read",
    description: "vectors read in the memory of their ranks, each rank folds its slice, all gather; two hops",
    fits: ATTACHED_FEW,
    pays: |bytes, shape| shape.pulls && !shape.crowded && bytes >= 2 << 20,
    ordered: true,
    body: Body::Shared(run),
};

/// Directly where it can be. Else three steps: where the vectors are, where the folded slices are,
/// and that all have been read. In place a rank writes its own slice while others read the rest,
/// and another's slice only once its owner, who alone reads it here, has folded it.
///
/// # Errors
/// As [`Steps::await_all`].
pub fn run(steps: &mut Steps<'_>, operation: &Operation<'_>) -> Result<()> {
    if direct::run(steps, operation)? {
        return Ok(());
    }
    let (bytes, me, size) = (operation.bytes(), steps.rank(), steps.size());
    let slice_of = |rank| owned(bytes, size, rank);
    let result = |rank| operation.recv.slice(slice_of(rank).start, slice_of(rank).len());
    if !steps.expose_all(operation, operation.recv.as_src())? {
        return two_shot::run(steps, operation);
    }
    fold_part(steps, operation, slice_of(me), result(me), |_, _| Ok(()))?;
    steps.expose_result(operation)?;
    for rank in steps.others() {
        let theirs = steps.exposed(rank)?;
        steps.pull(theirs, slice_of(rank).start, result(rank))?;
    }
    steps.close()
}
