//! Folding the vectors of several ranks: what algorithms of all kinds have in common.

use super::Operation;
use crate::base::buffer::{Dst, Src};
use crate::base::dtype::DataType;
use crate::base::error::Result;
use crate::base::ids::WorldSize;
use crate::base::op::ReduceOp;
use crate::kernel;

/// Up to this many ranks, what is kept for each lives on the stack.
pub(super) const FEW: usize = 16;

/// How vectors become one.
#[derive(Clone, Copy, Debug)]
pub struct Fold {
    dtype: DataType,
    op: ReduceOp,
}

impl Fold {
    /// For vectors of all ranks at once.
    ///
    /// # Errors
    /// `Internal` for an operation that does not reduce.
    pub fn of(operation: &Operation<'_>) -> Result<Self> {
        Ok(Self { dtype: operation.dtype(), op: operation.op()? })
    }

    /// For vectors of some ranks at a time, and what came out for others: averages are sums until [`finish`].
    ///
    /// # Errors
    /// As [`Fold::of`].
    pub fn partial(operation: &Operation<'_>) -> Result<Self> {
        let whole = Self::of(operation)?;
        let op = if whole.op == ReduceOp::Avg { ReduceOp::Sum } else { whole.op };
        Ok(Self { op, ..whole })
    }

    /// Folds two vectors, `first` before `second`; `dst` may be one of them.
    pub fn two(self, dst: Dst<'_>, first: Src<'_>, second: Src<'_>) {
        kernel::fold(self.dtype, self.op, dst, &[first, second]);
    }

    /// Folds the vectors of members 0 to `size - 1`, in that order.
    pub fn in_order<'a>(self, dst: Dst<'_>, size: WorldSize, vector: impl Fn(usize) -> Src<'a>) {
        if size <= FEW {
            let mut vectors = [Src::empty(); FEW];
            vectors[..size].iter_mut().enumerate().for_each(|(rank, slot)| *slot = vector(rank));
            kernel::fold(self.dtype, self.op, dst, &vectors[..size]);
        } else {
            let vectors: Vec<Src<'_>> = (0..size).map(vector).collect();
            kernel::fold(self.dtype, self.op, dst, &vectors);
        }
    }
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

/// Makes the result out of what [`Fold::partial`] has made of the vectors of all `ranks` ranks.
pub(super) fn finish(operation: &Operation<'_>, result: Dst<'_>, ranks: WorldSize) -> Result<()> {
    if operation.op()? == ReduceOp::Avg {
        kernel::average(operation.dtype(), result, ranks);
    }
    Ok(())
}
