//! The compiled loops of the kernels. Each body in `blocks` is compiled for the baseline of the
//! target and for AVX2. Neither version contracts a product and a sum, so both give the same bits.

#[cfg(target_arch = "x86_64")]
use super::blocks::elements_in_whole_vectors;
use super::blocks::{FoldTarget, average_blocks, fold_blocks, fold_one, scale_blocks};
use super::element::{Element, FoldOperator, Numeric, Real};
#[cfg(target_arch = "x86_64")]
use super::f32x8::F32x8;
use crate::base::buffer::{Dst, Src};

/// A compiled fold, with the number of ranks that an average divides by. The caller guarantees
/// three things: Every destination and every source is as long as the first destination. This
/// length is a multiple of the size of the kernel's element. The processor supports the kernel's
/// instructions.
pub(super) type FoldKernel = unsafe fn(FoldTarget<'_>, &[Src<'_>], usize);

/// A compiled scaling; the obligations are those of [`FoldKernel`].
pub(super) type ScaleKernel = unsafe fn(Dst<'_>, Src<'_>, f64);

/// A compiled division by a number of ranks; the obligations are those of [`FoldKernel`].
pub(super) type AverageKernel = unsafe fn(Dst<'_>, usize);

/// Folds for the target's baseline. Single elements also use this version, because they gain
/// nothing from other instruction sets.
///
/// # Safety
/// As for [`FoldKernel`].
pub(super) unsafe fn fold_portable<E, O>(to: FoldTarget<'_>, sources: &[Src<'_>], ranks: usize)
where
    E: Element,
    O: FoldOperator<E::Acc>,
{
    if to.dst.len() == size_of::<E::Stored>() {
        // SAFETY: the caller gives the same guarantee, and the length is one element.
        unsafe { fold_one::<E, O>(to, sources, O::finish_arg(ranks)) }
    } else {
        // SAFETY: the caller gives the same guarantee.
        unsafe { fold_blocks::<E, O>(to, sources, ranks, 0) }
    }
}

/// Folds for AVX2.
///
/// # Safety
/// As for [`FoldKernel`]; the processor must have AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn fold_avx2<E, O>(to: FoldTarget<'_>, sources: &[Src<'_>], ranks: usize)
where
    E: Element,
    O: FoldOperator<E::Acc>,
{
    // SAFETY: the caller gives the same guarantee.
    unsafe { fold_blocks::<E, O>(to, sources, ranks, 0) }
}

/// Scales for the target's baseline.
///
/// # Safety
/// As for [`ScaleKernel`].
pub(super) unsafe fn scale_portable<E>(dst: Dst<'_>, src: Src<'_>, factor: f64)
where
    E: Element,
    E::Acc: Real,
{
    // SAFETY: the caller gives the same guarantee.
    unsafe { scale_blocks::<E>(dst, src, factor, 0) }
}

/// Scales for AVX2.
///
/// # Safety
/// As for [`ScaleKernel`]; the processor must have AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn scale_avx2<E>(dst: Dst<'_>, src: Src<'_>, factor: f64)
where
    E: Element,
    E::Acc: Real,
{
    // SAFETY: the caller gives the same guarantee.
    unsafe { scale_blocks::<E>(dst, src, factor, 0) }
}

/// Averages for the target's baseline.
///
/// # Safety
/// As for [`AverageKernel`].
pub(super) unsafe fn average_portable<E>(dst: Dst<'_>, ranks: usize)
where
    E: Element,
    E::Acc: Numeric,
{
    // SAFETY: the caller gives the same guarantee.
    unsafe { average_blocks::<E>(dst, ranks, 0) }
}

/// Averages for AVX2.
///
/// # Safety
/// As for [`AverageKernel`]; the processor must have AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn average_avx2<E>(dst: Dst<'_>, ranks: usize)
where
    E: Element,
    E::Acc: Numeric,
{
    // SAFETY: the caller gives the same guarantee.
    unsafe { average_blocks::<E>(dst, ranks, 0) }
}

/// Averages a small float for AVX2 and F16C: first the whole vectors `V`, then the remaining
/// elements.
///
/// # Safety
/// As for [`AverageKernel`]; the processor must have AVX2 and F16C.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
pub(super) unsafe fn average_f32x8<E, V>(dst: Dst<'_>, ranks: usize)
where
    E: Element<Acc = f32>,
    V: Element<Acc = F32x8>,
{
    // SAFETY: the caller gives the same guarantee, and the vectors' instructions are enabled.
    unsafe { average_blocks::<V>(dst, ranks, 0) }
    let rest = elements_in_whole_vectors::<E>(dst);
    // SAFETY: the caller gives the same guarantee.
    unsafe { average_blocks::<E>(dst, ranks, rest) }
}

/// Folds a small float for AVX2 and F16C: first the whole vectors `V`, then the remaining elements.
///
/// # Safety
/// As for [`FoldKernel`]; the processor must have AVX2 and F16C.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
pub(super) unsafe fn fold_f32x8<E, V, O>(to: FoldTarget<'_>, sources: &[Src<'_>], ranks: usize)
where
    E: Element<Acc = f32>,
    V: Element<Acc = F32x8>,
    O: FoldOperator<F32x8> + FoldOperator<f32>,
{
    // SAFETY: the caller gives the same guarantee, and the vectors' instructions are enabled.
    unsafe { fold_blocks::<V, O>(to, sources, ranks, 0) }
    let rest = elements_in_whole_vectors::<E>(to.dst);
    // SAFETY: the caller gives the same guarantee.
    unsafe { fold_blocks::<E, O>(to, sources, ranks, rest) }
}

/// Scales a small float for AVX2 and F16C: first the whole vectors `V`, then the remaining
/// elements.
///
/// # Safety
/// As for [`ScaleKernel`]; the processor must have AVX2 and F16C.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
pub(super) unsafe fn scale_f32x8<E, V>(dst: Dst<'_>, src: Src<'_>, factor: f64)
where
    E: Element<Acc = f32>,
    V: Element<Acc = F32x8>,
{
    // SAFETY: the caller gives the same guarantee, and the vectors' instructions are enabled.
    unsafe { scale_blocks::<V>(dst, src, factor, 0) }
    let rest = elements_in_whole_vectors::<E>(dst);
    // SAFETY: the caller gives the same guarantee.
    unsafe { scale_blocks::<E>(dst, src, factor, rest) }
}
