//! Folds: the element-wise reduction of the vectors of several ranks into one vector. The
//! algorithms over shared memory and over messages both use them.
//!
//! An algorithm that folds all vectors at once uses [`Fold::of`]. An algorithm that folds step by
//! step, for example first within a node, uses [`Fold::subset`] for the vectors of ranks, and
//! [`Fold::partial`] for the results of such folds.
//!
//! An average multiplies the vector of each rank by 1/N before it adds the vector, so that no
//! partial result is larger than the largest vector. Averages of integers are exact and thus need
//! the sum of all vectors in a wider type. Only algorithms that fold all vectors at once compute
//! them ([`ReduceOp::is_integer_average`]).

use super::Operation;
use crate::base::buffer::{Dst, Src};
use crate::base::dtype::DataType;
use crate::base::error::{Error, Result};
use crate::base::ids::WorldSize;
use crate::base::op::ReduceOp;
use crate::kernel::{self, FoldTarget, Stager};

/// The maximum number of ranks for which per-rank data is kept on the stack.
pub(super) const MAX_STACK_RANKS: usize = 16;

/// The parameters of a fold of several vectors into one.
#[derive(Clone, Copy, Debug)]
pub struct Fold {
    dtype: DataType,
    op: ReduceOp,
    /// The divisor of an average over some of the vectors; `None` if the divisor is the number of
    /// folded vectors.
    divisor: Option<WorldSize>,
}

/// Returns whether a partial result, which is rounded to this type, has less precision than the
/// accumulator of a fold.
pub(super) fn is_rounded_between_folds(dtype: DataType) -> bool {
    matches!(dtype, DataType::F16 | DataType::Bf16 | DataType::F8E4M3 | DataType::F8E5M2)
}

impl Fold {
    /// Returns the fold that reduces the vectors of all ranks at once.
    ///
    /// # Errors
    /// `Internal` for an operation that does not reduce.
    pub fn of(operation: &Operation<'_>) -> Result<Self> {
        Ok(Self { dtype: operation.dtype(), op: operation.op()?, divisor: None })
    }

    /// Returns the fold that reduces the vectors of some of the `ranks` ranks, for example of the
    /// ranks of one node. [`Fold::partial`] then folds the results of all such subsets.
    ///
    /// # Errors
    /// As [`Fold::partial`].
    pub fn subset(operation: &Operation<'_>, ranks: WorldSize) -> Result<Self> {
        let partial = Self::partial(operation)?;
        if operation.op()? != ReduceOp::Avg {
            return Ok(partial);
        }
        Ok(Self { op: ReduceOp::Avg, divisor: Some(ranks), ..partial })
    }

    /// Returns the fold that reduces the partial results of several subsets of ranks. For an
    /// average, the result is the sum of the partial averages.
    ///
    /// # Errors
    /// As [`Fold::of`], and `Internal` for an operation that must fold all vectors at once.
    pub fn partial(operation: &Operation<'_>) -> Result<Self> {
        let whole = Self::of(operation)?;
        if whole.op.is_integer_average(whole.dtype) {
            return Err(Error::internal("an average of integers was folded step by step"));
        }
        let op = if whole.op == ReduceOp::Avg { ReduceOp::Sum } else { whole.op };
        Ok(Self { op, ..whole })
    }

    /// Returns the fold of the contributions of all `ranks` ranks step by step, with
    /// [`Fold::start`] and [`Fold::fold_next`]. If the contributions are copies that are already
    /// multiplied ([`is_partial_contribution_scaled`]), this is [`Fold::partial`].
    ///
    /// # Errors
    /// As [`Fold::partial`].
    pub fn contributions(operation: &Operation<'_>, ranks: WorldSize) -> Result<Self> {
        match is_partial_contribution_scaled(operation)? {
            true => Self::partial(operation),
            false => Self::subset(operation, ranks),
        }
    }

    /// Folds two vectors into `dst`. `first` comes before `second` in the order of operands. `dst`
    /// may be one of the two vectors.
    pub fn fold_two(self, dst: Dst<'_>, first: Src<'_>, second: Src<'_>) {
        self.fold_vectors(dst, &[first, second]);
    }

    /// Folds the contribution of one more rank into a partial result of this fold. `dst` may be one
    /// of the two.
    pub fn fold_next(self, dst: Dst<'_>, partial: Src<'_>, vector: Src<'_>) {
        match self.divisor {
            Some(ranks) => kernel::add_to_average(self.dtype, dst, partial, vector, ranks),
            None => kernel::fold(self.dtype, self.op, dst, &[partial, vector]),
        }
    }

    /// Starts a partial result with the contribution of one rank.
    pub fn start(self, dst: Dst<'_>, vector: Src<'_>) {
        match self.divisor {
            Some(ranks) => kernel::fold_average(self.dtype, dst, &[vector], ranks),
            None => kernel::copy(dst, vector),
        }
    }

    /// Folds the vectors of members 0 to `size - 1` into `dst`, in that order. `vector` returns the
    /// vector of a member.
    pub fn fold_in_order<'a>(
        self,
        dst: Dst<'_>,
        size: WorldSize,
        vector: impl Fn(usize) -> Src<'a>,
    ) {
        with_vectors(size, vector, |vectors| self.fold_vectors(dst, vectors));
    }

    /// Folds as [`Fold::fold_in_order`] and stores the result in `dst` and in each of `extra_dsts`,
    /// which have the same length as `dst`. If the operator is an average, the divisor must be
    /// `size`.
    pub fn fold_to_all<'a>(
        self,
        dst: Dst<'_>,
        extra_dsts: &[Dst<'_>],
        size: WorldSize,
        vector: impl Fn(usize) -> Src<'a>,
    ) {
        debug_assert!(self.divisor.is_none(), "an average has one destination");
        with_vectors(size, vector, |all| {
            kernel::fold_to_all(self.dtype, self.op, FoldTarget { dst, extra_dsts }, all)
        });
    }

    fn fold_vectors(self, dst: Dst<'_>, vectors: &[Src<'_>]) {
        match self.divisor {
            Some(ranks) => kernel::fold_average(self.dtype, dst, vectors, ranks),
            None => kernel::fold(self.dtype, self.op, dst, vectors),
        }
    }
}

/// Collects the vectors of members 0 to `size - 1` in one array and calls `fold` with that array.
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

/// Copies this rank's contribution from the caller's memory. If the operator is `PREMUL_SUM`, the
/// contribution is the vector multiplied by this rank's factor; otherwise it is the vector.
pub(super) fn copy_contribution(
    operation: &Operation<'_>,
    dst: Dst<'_>,
    src: Src<'_>,
) -> Result<()> {
    match operation.op()? {
        ReduceOp::PremulSum => kernel::scale_copy(operation.dtype(), operation.factor, dst, src),
        _ => kernel::copy(dst, src),
    }
    Ok(())
}

/// Copies this rank's contribution to memory that other ranks read. `stager` measures how far away
/// the cache lines of that memory are, and chooses the kind of store instructions.
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

/// Returns whether this rank contributes its vector unchanged, so that a fold may read it from the
/// caller's buffer.
pub(super) fn is_contribution_unscaled(operation: &Operation<'_>) -> Result<bool> {
    Ok(operation.op()? != ReduceOp::PremulSum)
}

/// Returns whether an algorithm that folds with [`Fold::contributions`] must first copy this rank's
/// contribution with [`copy_partial_contribution`].
pub(super) fn is_partial_contribution_scaled(operation: &Operation<'_>) -> Result<bool> {
    let is_rounded_average =
        operation.op()? == ReduceOp::Avg && is_rounded_between_folds(operation.dtype());
    Ok(is_rounded_average || !is_contribution_unscaled(operation)?)
}

/// Copies this rank's contribution, for algorithms that fold the contributions of all `ranks` ranks
/// step by step with [`Fold::partial`]. In addition to [`copy_contribution`], this function
/// multiplies the vector by 1/`ranks` if the operation is an average.
pub(super) fn copy_partial_contribution(
    operation: &Operation<'_>,
    dst: Dst<'_>,
    src: Src<'_>,
    ranks: WorldSize,
) -> Result<()> {
    if operation.op()? == ReduceOp::Avg {
        Fold::subset(operation, ranks)?.start(dst, src);
        return Ok(());
    }
    copy_contribution(operation, dst, src)
}
