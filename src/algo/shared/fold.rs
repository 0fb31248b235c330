//! Folding one vector per rank, in rank order, whatever the number of ranks.

use crate::algo::Operation;
use crate::base::buffer::{Dst, Src};
use crate::base::error::Result;
use crate::base::ids::{Rank, WorldSize};
use crate::base::op::ReduceOp;
use crate::kernel;

/// Up to this many ranks, what is kept for each lives on the stack.
pub(super) const FEW: usize = 16;

/// Folds the vectors of ranks 0 to `size - 1`, in that order.
pub(super) fn in_rank_order<'a>(
    operation: &Operation<'_>,
    dst: Dst<'_>,
    size: WorldSize,
    vector: impl Fn(Rank) -> Src<'a>,
) -> Result<()> {
    let (dtype, op) = (operation.dtype(), operation.op()?);
    if size <= FEW {
        let mut vectors = [Src::empty(); FEW];
        vectors[..size].iter_mut().enumerate().for_each(|(rank, slot)| *slot = vector(rank));
        kernel::fold(dtype, op, dst, &vectors[..size]);
    } else {
        let vectors: Vec<Src<'_>> = (0..size).map(vector).collect();
        kernel::fold(dtype, op, dst, &vectors);
    }
    Ok(())
}

/// Copies this rank's contribution out of the caller's memory, times its factor where the operator
/// wants one.
pub(super) fn contribute(operation: &Operation<'_>, dst: Dst<'_>, src: Src<'_>) -> Result<()> {
    match operation.op()? {
        ReduceOp::PremulSum => kernel::scale_copy(operation.dtype(), operation.factor, dst, src),
        _ => kernel::copy(dst, src),
    }
    Ok(())
}
