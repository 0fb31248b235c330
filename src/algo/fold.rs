//! Folding the vectors of several ranks: what algorithms of all kinds have in common.

use super::Operation;
use crate::base::buffer::{Dst, Src};
use crate::base::dtype::DataType;
use crate::base::error::Result;
use crate::base::ids::WorldSize;
use crate::base::op::ReduceOp;
use crate::kernel::{self, Stager};

/// Up to this many ranks, what is kept for each lives on the stack.
pub(super) const MAX_STACK_RANKS: usize = 16;

/// How vectors become one.
#[derive(Clone, Copy, Debug)]
pub struct Fold {
    dtype: DataType,
    op: ReduceOp,
    /// What averages are divided by, where that is not the number of vectors.
    divisor: Option<WorldSize>,
}

/// Whether what is kept between two folds is rounded to less than what is folded in.
pub(super) fn is_rounded_between_folds(dtype: DataType) -> bool {
    matches!(dtype, DataType::F16 | DataType::Bf16 | DataType::F8E4M3 | DataType::F8E5M2)
}

/// Whether averages of the operation are made of parts that have been divided already: sums of
/// narrow numbers may not fit where the average does.
fn is_divided_first(operation: &Operation<'_>) -> Result<bool> {
    Ok(is_rounded_between_folds(operation.dtype()) && operation.op()? == ReduceOp::Avg)
}

impl Fold {
    /// For vectors of all ranks at once.
    ///
    /// # Errors
    /// `Internal` for an operation that does not reduce.
    pub fn of(operation: &Operation<'_>) -> Result<Self> {
        Ok(Self { dtype: operation.dtype(), op: operation.op()?, divisor: None })
    }

    /// For the vectors of some of all `ranks` ranks, at once; [`Fold::partial`] folds what comes
    /// out with that of others.
    ///
    /// # Errors
    /// As [`Fold::of`].
    pub fn subset(operation: &Operation<'_>, ranks: WorldSize) -> Result<Self> {
        if is_divided_first(operation)? {
            return Ok(Self { divisor: Some(ranks), ..Self::of(operation)? });
        }
        Self::partial(operation)
    }

    /// For what came out for some ranks, and for others: averages are sums until
    /// [`finish_average`].
    ///
    /// # Errors
    /// As [`Fold::of`].
    pub fn partial(operation: &Operation<'_>) -> Result<Self> {
        let whole = Self::of(operation)?;
        let op = if whole.op == ReduceOp::Avg { ReduceOp::Sum } else { whole.op };
        Ok(Self { op, ..whole })
    }

    /// Folds two vectors, `first` before `second`; `dst` may be one of them.
    pub fn fold_two(self, dst: Dst<'_>, first: Src<'_>, second: Src<'_>) {
        kernel::fold(self.dtype, self.op, dst, &[first, second]);
    }

    /// Folds the vectors of members 0 to `size - 1`, in that order.
    pub fn fold_in_order<'a>(
        self,
        dst: Dst<'_>,
        size: WorldSize,
        vector: impl Fn(usize) -> Src<'a>,
    ) {
        with_vectors(size, vector, |vectors| self.fold_vectors(dst, vectors));
    }

    /// The same where no average is of more vectors than these, and to `extra_dsts` as well, which
    /// are as long as `dst`.
    pub fn fold_to_all<'a>(
        self,
        (dst, extra_dsts): (Dst<'_>, &[Dst<'_>]),
        size: WorldSize,
        vector: impl Fn(usize) -> Src<'a>,
    ) {
        debug_assert!(self.divisor.is_none(), "a part of an average goes to one place");
        with_vectors(size, vector, |all| {
            kernel::fold_to_all(self.dtype, self.op, (dst, extra_dsts), all)
        });
    }

    fn fold_vectors(self, dst: Dst<'_>, vectors: &[Src<'_>]) {
        match self.divisor {
            Some(ranks) => kernel::fold_average(self.dtype, dst, vectors, ranks),
            None => kernel::fold(self.dtype, self.op, dst, vectors),
        }
    }
}

/// Puts the vectors of members 0 to `size - 1` beside each other.
#[inline]
pub(super) fn with_vectors<'a>(
    size: WorldSize,
    vector: impl Fn(usize) -> Src<'a>,
    fold: impl FnOnce(&[Src<'a>]),
) {
    if size == 2 {
        fold(&[vector(0), vector(1)]);
    } else if size <= MAX_STACK_RANKS {
        let mut vectors = [Src::empty(); MAX_STACK_RANKS];
        vectors[..size].iter_mut().enumerate().for_each(|(rank, slot)| *slot = vector(rank));
        fold(&vectors[..size]);
    } else {
        let vectors: Vec<Src<'_>> = (0..size).map(vector).collect();
        fold(&vectors);
    }
}

/// Copies this rank's contribution out of the caller's memory, times its factor where the operator
/// wants one.
pub(super) fn copy_contribution(
    operation: &Operation<'_>,
    dst: Dst<'_>,
    src: Src<'_>,
) -> Result<()> {
    copy_contribution_with(operation.op()?, (operation.dtype(), operation.factor), dst, src);
    Ok(())
}

/// The same to where others read it, by what is known of how far away they are.
pub(super) fn stage_contribution(
    operation: &Operation<'_>,
    stager: &mut Stager,
    dst: Dst<'_>,
    src: Src<'_>,
) -> Result<()> {
    if operation.op()? == ReduceOp::PremulSum {
        return copy_contribution(operation, dst, src);
    }
    stager.stage(dst, src);
    Ok(())
}

/// The same for an operator on elements of a type, and a factor.
pub(super) fn copy_contribution_with(
    op: ReduceOp,
    (dtype, factor): (DataType, f64),
    dst: Dst<'_>,
    src: Src<'_>,
) {
    match op {
        ReduceOp::PremulSum => kernel::scale_copy(dtype, factor, dst, src),
        _ => kernel::copy(dst, src),
    }
}

/// Whether this rank contributes its vector as it is, so that it may be folded where the caller has
/// it.
pub(super) fn is_contribution_unscaled(operation: &Operation<'_>) -> Result<bool> {
    Ok(operation.op()? != ReduceOp::PremulSum)
}

/// Whether [`copy_partial_contribution`] changes what this rank contributes.
pub(super) fn is_partial_contribution_scaled(operation: &Operation<'_>) -> Result<bool> {
    Ok(operation.op()? == ReduceOp::PremulSum || is_divided_first(operation)?)
}

/// As [`copy_contribution`], for algorithms that fold the vectors of all `ranks` ranks by and by.
pub(super) fn copy_partial_contribution(
    operation: &Operation<'_>,
    dst: Dst<'_>,
    src: Src<'_>,
    ranks: WorldSize,
) -> Result<()> {
    if is_divided_first(operation)? {
        kernel::fold_average(operation.dtype(), dst, &[src], ranks);
        return Ok(());
    }
    copy_contribution(operation, dst, src)
}

/// Makes the result out of what [`Fold::partial`] has made of the vectors of all `ranks` ranks.
pub(super) fn finish_average(
    operation: &Operation<'_>,
    result: Dst<'_>,
    ranks: WorldSize,
) -> Result<()> {
    if operation.op()? == ReduceOp::Avg && !is_divided_first(operation)? {
        kernel::average(operation.dtype(), result, ranks);
    }
    Ok(())
}
