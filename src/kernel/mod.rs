//! Reduction kernels: the loops that combine the vectors of several ranks, element by element, into
//! one vector.
//!
//! The functions work on views of memory only ([`Src`], [`Dst`]): [`copy()`], [`copy_part`],
//! [`stage`], [`fold()`], [`fold_to_all`], [`fold_average`], [`add_to_average`], [`scale_copy`],
//! [`find_rejected_element`], [`sum_of_powers`], and conversions ([`convert()`], [`widen`],
//! [`narrow`]).
//!
//! Guarantees:
//! - Elements are combined in the order of `sources`, left to right, in every loop. The result of a
//!   call depends only on the bytes of its inputs, not on the machine, the alignment or the length.
//!   A NaN result is always the canonical quiet NaN of its type, because processors differ in the
//!   payload and the sign of the NaN that they produce.
//! - MIN and MAX give NaN if any input is NaN, and -0 counts as smaller than +0. The results of MIN
//!   and MAX thus have the same bits for every order of the inputs.
//! - The types f16, bf16 and f8 are widened to f32, and all sources are folded in f32. The result
//!   is rounded once, to nearest, ties to even. If a finite result is too large for an f8 type, it
//!   becomes the largest finite number of that type. An infinite result becomes infinity in f8e5m2,
//!   and the largest number in f8e4m3, which has no infinity.
//! - Integers wrap. AVG on integers computes the exact sum in a wider type, divides it, and rounds
//!   the quotient towards zero.
//! - AVG on floats multiplies each element by 1/N, rounded to the type of the accumulator, and adds
//!   the products. An average that is a value of the type thus does not overflow.
//! - Buffers may have any alignment, and may be shared with other processes: the kernels never
//!   create a reference to them.
//! - Arithmetic on floats runs in the default floating-point mode of the processor (rounding to
//!   nearest, subnormal numbers, no traps), whatever mode the calling thread has ([`float_mode`]).
//!
//! This module does not depend on ranks, groups, transports, threads or waiting.
#![allow(
    unsafe_code,
    reason = "memory that other processes may write is accessed only through raw pointers"
)]

mod accumulator;
mod convert;
mod element;
#[cfg(target_arch = "x86_64")]
mod f32x8;
mod float;
mod float_mode;
mod integer;
mod loops;
mod minifloat;
mod nan_scan;
mod norm;
mod ordered_codes;
mod table;
#[cfg(test)]
mod tests;

use crate::base::buffer::{Dst, Src};
pub use crate::base::copy::{Stager, copy, copy_part, stage};
use crate::base::dtype::DataType;
use crate::base::op::ReduceOp;
pub use convert::{convert, is_convertible, narrow, widen};
pub use float_mode::with_default_float_mode;
use loops::FoldKernel;
pub use loops::FoldTarget;
pub use nan_scan::find_rejected_element;
pub use norm::{NormPower, sum_of_powers};
use table::Isa;

/// Folds the sources into `dst`: each element becomes `sources[0] op sources[1] op ...`, in that
/// order.
///
/// `dst` may be exactly the memory of one or several sources. If `dst` overlaps a source in any
/// other way, the result is unspecified. AVG divides by the number of sources. PREMUL_SUM only
/// adds, because [`scale_copy`] has already multiplied its inputs.
///
/// # Panics
/// If there is no source, if the lengths differ or are not a multiple of the element size, or if
/// `op` is not defined for `dtype` ([`ReduceOp::is_defined_for`]).
pub fn fold(dtype: DataType, op: ReduceOp, dst: Dst<'_>, sources: &[Src<'_>]) {
    fold_to_all(dtype, op, FoldTarget { dst, extra_dsts: &[] }, sources);
}

/// Folds as [`fold()`], and stores the result in all destinations of `target`. Each destination may
/// be exactly the memory of a source. The additional destinations must not overlap the first
/// destination.
///
/// # Panics
/// As [`fold()`].
pub fn fold_to_all(dtype: DataType, op: ReduceOp, target: FoldTarget<'_>, sources: &[Src<'_>]) {
    fold_with_divisor(dtype, op, target, sources, sources.len());
}

/// Folds as [`fold()`] with the operator AVG, but divides by `ranks` instead of the number of
/// sources. The sources are the vectors of some of the `ranks` ranks. If several such calls
/// together cover the vectors of all ranks, the sum of their results is the average over all ranks.
///
/// # Panics
/// As [`fold()`], and if `dtype` is not a floating-point type: the sum of rounded integers is not
/// the rounded average.
pub fn fold_average(dtype: DataType, dst: Dst<'_>, sources: &[Src<'_>], ranks: usize) {
    assert!(dtype.is_float(), "partial averages of {dtype} elements are not exact");
    fold_with_divisor(dtype, ReduceOp::Avg, FoldTarget { dst, extra_dsts: &[] }, sources, ranks);
}

/// Adds one rank's vector to a partial average: each element of `dst` becomes the element of
/// `partial` plus the element of `vector` divided by `ranks`. `partial` is a result of
/// [`fold_average`] or of this function.
///
/// Partial results of f16, bf16 and f8 are rounded. If a rounded and an exact product were added,
/// equal elements of opposite sign would not cancel, so this function is not for these types.
///
/// # Panics
/// As [`fold_average`], and if `dtype` is f16, bf16 or an f8 type.
pub fn add_to_average(
    dtype: DataType,
    dst: Dst<'_>,
    partial: Src<'_>,
    vector: Src<'_>,
    ranks: usize,
) {
    let Some(kernel) = table::add_to_average_kernel(best_isa(dtype, dst), dtype) else {
        panic_no_partial_average(dtype);
    };
    run_fold_kernel(kernel, dtype, FoldTarget { dst, extra_dsts: &[] }, &[partial, vector], ranks);
}

fn fold_with_divisor(
    dtype: DataType,
    op: ReduceOp,
    to: FoldTarget<'_>,
    sources: &[Src<'_>],
    ranks: usize,
) {
    run_fold_kernel(
        find_fold_kernel(best_isa(dtype, to.dst), dtype, op),
        dtype,
        to,
        sources,
        ranks,
    );
}

/// Returns the instruction set for a vector. A vector of one element needs no vector instructions.
fn best_isa(dtype: DataType, dst: Dst<'_>) -> Isa {
    if dst.len() == dtype.size() { Isa::Portable } else { Isa::best() }
}

fn find_fold_kernel(isa: Isa, dtype: DataType, op: ReduceOp) -> FoldKernel {
    let Some(kernel) = table::fold_kernel(isa, dtype, op) else { panic_undefined_op(op, dtype) };
    kernel
}

/// Checks the lengths and runs a fold loop. The loop must be compiled for this processor and for
/// elements of this type.
#[inline]
fn run_fold_kernel(
    kernel: FoldKernel,
    dtype: DataType,
    to: FoldTarget<'_>,
    sources: &[Src<'_>],
    ranks: usize,
) {
    assert!(!sources.is_empty(), "a fold needs at least one source");
    check_whole_elements(dtype, to.dst);
    for source in sources {
        check_length(to.dst, *source);
    }
    for extra_dst in to.extra_dsts {
        check_length(to.dst, extra_dst.as_src());
    }
    if to.dst.is_empty() {
        return;
    }
    // SAFETY: the caller has chosen an instruction set that this processor has. All views are as
    // long as `dst`, which contains whole elements. The views are valid by the obligation of their
    // constructors.
    let run = || unsafe { kernel(to, sources, ranks) };
    if dtype.is_float() { with_default_float_mode(run) } else { run() }
}

/// A [`fold()`] of one type and operator whose loop is already selected. It is for vectors that are
/// so short that the selection would take noticeable time.
#[derive(Clone, Copy, Debug)]
pub struct ResolvedFold {
    dtype: DataType,
    kernel: FoldKernel,
    /// The loop for a single element.
    single_element_kernel: FoldKernel,
}

impl ResolvedFold {
    /// Selects the loop for a type and an operator.
    ///
    /// # Panics
    /// If `op` is not defined for `dtype`.
    pub fn resolve(dtype: DataType, op: ReduceOp) -> Self {
        let [kernel, one] =
            [Isa::best(), Isa::Portable].map(|isa| find_fold_kernel(isa, dtype, op));
        Self { dtype, kernel, single_element_kernel: one }
    }

    /// Folds as [`fold()`].
    ///
    /// # Panics
    /// As [`fold()`].
    #[inline]
    pub fn fold(self, dst: Dst<'_>, sources: &[Src<'_>]) {
        let kernel =
            if dst.len() == self.dtype.size() { self.single_element_kernel } else { self.kernel };
        run_fold_kernel(
            kernel,
            self.dtype,
            FoldTarget { dst, extra_dsts: &[] },
            sources,
            sources.len(),
        );
    }
}

/// Multiplies each element by `factor`. This prepares one rank's input for PREMUL_SUM.
///
/// The types f16, bf16 and f8 are multiplied in f32 and rounded once. For these types and for f32
/// and c64, the factor is rounded to f32. Both parts of a complex number are multiplied. `dst` may
/// be exactly the memory of `src`. If `dst` overlaps `src` in any other way, the result is
/// unspecified.
///
/// # Panics
/// If the lengths differ or are not a multiple of the element size, or if `dtype` is not a
/// floating-point type.
pub fn scale_copy(dtype: DataType, factor: f64, dst: Dst<'_>, src: Src<'_>) {
    let Some(kernel) = table::scale_kernel(Isa::best(), dtype) else {
        panic_undefined_op(ReduceOp::PremulSum, dtype);
    };
    check_whole_elements(dtype, dst);
    check_length(dst, src);
    if dst.is_empty() {
        return;
    }
    // SAFETY: as in `run_fold_kernel`.
    with_default_float_mode(|| unsafe { kernel(dst, src, factor) });
}

#[cold]
#[allow(clippy::panic, reason = "callers check the combination first; see `fold`")]
fn panic_undefined_op(op: ReduceOp, dtype: DataType) -> ! {
    panic!("{op} is not defined on {dtype} elements, and the caller did not check")
}

#[cold]
#[allow(clippy::panic, reason = "callers select such types only")]
fn panic_no_partial_average(dtype: DataType) -> ! {
    panic!("vectors of {dtype} elements cannot be added to a partial average")
}

#[inline]
fn check_length(dst: Dst<'_>, src: Src<'_>) {
    assert!(
        dst.len() == src.len(),
        "a source of {} bytes for a destination of {}",
        src.len(),
        dst.len()
    );
}

#[inline]
fn check_whole_elements(dtype: DataType, dst: Dst<'_>) {
    assert!(
        dst.len() & (dtype.size() - 1) == 0,
        "{} bytes are not a whole number of {dtype} elements",
        dst.len()
    );
}
