//! The loops of the kernels. A fold loop works on blocks (ranges of elements with the same indices
//! in every source). It combines the block of every source in an accumulator on the stack, and then
//! stores the accumulator in the destination.
//!
//! ```text
//! for each block:   acc  = begin(source 0) op source 1      (one pass over the block)
//!                   acc  = acc op source 2                  (one pass)
//!                   acc  = acc op source 3                  (one pass)
//!                   dst  = finish(acc)                      (one pass)
//! ```
//!
//! The accumulator overlaps no other memory, so the compiler vectorises each pass without a check
//! whether `dst` is one of the sources. A loop reads a block from every source before it writes
//! that block, which makes folding in place correct.
//!
//! Two sources need no accumulator. They are folded in strides, which are groups of `N` consecutive
//! elements that fit in registers. The results of one stride are stored while the elements of the
//! next stride are still being loaded.
//!
//! Each loop is compiled for the baseline of the target and for AVX2. In neither version does the
//! compiler merge a multiplication and an addition into a fused multiply-add, which would round
//! differently, so both versions give the same bits. The functions that a loop calls are
//! `inline(always)`, so that they are compiled for the instruction set of the loop.

use super::accumulator::{AccumulatorBlock, fold_into, load, load_and_fold_pair, store};
use super::element::{Element, FoldOperator, Numeric, Real, Sum};
#[cfg(target_arch = "x86_64")]
use super::f32x8::{F32x8, LANES};
use crate::base::buffer::{Dst, Src};
use std::ops::Range;

/// A compiled fold loop. The arguments are the destinations, the sources, and the number of ranks
/// by which an average divides.
///
/// The caller guarantees:
///
/// - Every destination and every source is as long as the first destination.
/// - This length is a multiple of the size of the loop's element.
/// - The processor supports the instructions of the loop.
pub(super) type FoldKernel = unsafe fn(FoldTarget<'_>, &[Src<'_>], usize);

/// The destinations of a fold.
#[derive(Clone, Copy, Debug)]
pub struct FoldTarget<'a> {
    /// The first destination.
    pub dst: Dst<'a>,
    /// Additional destinations of the same result.
    pub extra_dsts: &'a [Dst<'a>],
}

/// A compiled loop that multiplies each element by a factor. The caller has the same obligations as
/// for [`FoldKernel`].
pub(super) type ScaleKernel = unsafe fn(Dst<'_>, Src<'_>, f64);

/// Folds with the instructions of the target's baseline. A fold of one element always uses this
/// version, because other instruction sets do not make it faster.
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
        unsafe { fold_one::<E, O>(to, sources, O::arg(ranks)) }
    } else {
        // SAFETY: the caller gives the same guarantee.
        unsafe { fold_blocks::<E, O>(to, sources, ranks, 0) }
    }
}

/// Folds with the instructions of AVX2.
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

/// Scales with the instructions of the target's baseline.
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

/// Scales with the instructions of AVX2.
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

/// Folds elements of a small float type `E` with the instructions of AVX2 and F16C. Processes whole
/// vectors of 8 elements (type `V`) first, and then the remaining elements.
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
    let first_remaining = elements_in_whole_vectors::<E>(to.dst);
    // SAFETY: the caller gives the same guarantee.
    unsafe { fold_blocks::<E, O>(to, sources, ranks, first_remaining) }
}

/// Scales elements of a small float type `E` with the instructions of AVX2 and F16C. Processes
/// whole vectors of 8 elements (type `V`) first, and then the remaining elements.
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
    let first_remaining = elements_in_whole_vectors::<E>(dst);
    // SAFETY: the caller gives the same guarantee.
    unsafe { scale_blocks::<E>(dst, src, factor, first_remaining) }
}

/// Folds the elements with the index `start` and above. Bytes at the end that are not a whole
/// element remain unchanged.
///
/// # Safety
/// Every source and every additional destination must be as long as `dst`, and the processor must
/// have the instructions that `E` needs.
#[inline(always)]
unsafe fn fold_blocks<E, O>(to: FoldTarget<'_>, sources: &[Src<'_>], ranks: usize, mut start: usize)
where
    E: Element,
    O: FoldOperator<E::Acc>,
{
    let count = to.dst.len() / size_of::<E::Stored>();
    let arg = O::arg(ranks);
    if let [first, second] = sources {
        // SAFETY: the caller gives the same guarantee.
        start = unsafe { fold_two_sources::<E, O>(to, [*first, *second], start..count, arg) };
    }
    let mut block = AccumulatorBlock::new();
    while start < count {
        let acc = block.accumulators::<E::Acc>(count - start);
        let (acc, other_sources): (&mut [E::Acc], _) = match sources {
            [first, second, others @ ..] => {
                let (first, second) =
                    (element_ptr::<E>(*first, start), element_ptr::<E>(*second, start));
                // SAFETY: each source has as many elements as `dst`, and `acc` has at most as many
                // elements as `dst` has from `start` on.
                (unsafe { load_and_fold_pair::<E, O>(acc, first, second, arg) }, others)
            }
            [only] => {
                let only = element_ptr::<E>(*only, start);
                // SAFETY: as above.
                (unsafe { load::<E, O>(acc, only, arg) }, &[][..])
            }
            [] => return,
        };
        for source in other_sources {
            let source = element_ptr::<E>(*source, start);
            // SAFETY: as above.
            unsafe { fold_into::<E, O>(acc, source, arg) }
        }
        let target = element_mut_ptr::<E>(to.dst, start);
        // SAFETY: `dst` has `count` elements, and `acc` has at most `count - start` elements.
        unsafe { store::<E, O>(target, acc, arg) }
        to.copy_to_extra_dsts::<E>(start, acc.len());
        start += acc.len();
    }
}

impl FoldTarget<'_> {
    /// Copies elements of `dst` to the additional destinations, while the L1 cache still holds
    /// them.
    #[inline(always)]
    fn copy_to_extra_dsts<E: Element>(self, start: usize, count: usize) {
        let (start, len) = (start * size_of::<E::Stored>(), count * size_of::<E::Stored>());
        for extra_dst in self.extra_dsts {
            extra_dst.slice(start, len).copy_from(self.dst.slice(start, len).as_src());
        }
    }
}

/// Folds two sources in whole strides, with a stride length that fits in registers. Returns the
/// index of the first element after the last whole stride.
///
/// # Safety
/// As for [`fold_strides`].
#[inline(always)]
unsafe fn fold_two_sources<E, O>(
    to: FoldTarget<'_>,
    sources: [Src<'_>; 2],
    elements: Range<usize>,
    arg: O::Arg,
) -> usize
where
    E: Element,
    O: FoldOperator<E::Acc>,
{
    match size_of::<E::Acc>() {
        // SAFETY: the caller gives the same guarantee.
        16.. => unsafe { fold_strides::<E, O, 4>(to, sources, elements, arg) },
        // SAFETY: as above.
        8.. => unsafe { fold_strides::<E, O, 16>(to, sources, elements, arg) },
        // SAFETY: as above.
        4.. => unsafe { fold_strides::<E, O, 32>(to, sources, elements, arg) },
        // SAFETY: as above.
        _ => unsafe { fold_strides::<E, O, 64>(to, sources, elements, arg) },
    }
}

/// Folds two sources in strides of `N` elements. Returns the index of the first element after the
/// last whole stride. The function reads each stride from both sources before it writes the stride,
/// which makes folding in place correct.
///
/// # Safety
/// The sources, `dst` and the additional destinations must contain all elements of the range
/// `elements`, with any alignment. The processor must have the instructions that `E` needs.
#[inline(always)]
unsafe fn fold_strides<E, O, const N: usize>(
    to: FoldTarget<'_>,
    [first, second]: [Src<'_>; 2],
    elements: Range<usize>,
    arg: O::Arg,
) -> usize
where
    E: Element,
    O: FoldOperator<E::Acc>,
{
    let end = elements.start + elements.len() / N * N;
    for start in (elements.start..end).step_by(N) {
        let stride = |source| element_ptr::<E>(source, start).cast::<[E::Stored; N]>();
        // SAFETY: `N` elements from `start` on are readable.
        let first_stride = unsafe { stride(first).read_unaligned() };
        // SAFETY: as above.
        let second_stride = unsafe { stride(second).read_unaligned() };
        let folded: [E::Stored; N] = std::array::from_fn(|index| {
            let first = O::begin(E::load(first_stride[index]), arg);
            let folded = O::combine(first, E::load(second_stride[index]), arg);
            E::store(O::finish(folded, arg))
        });
        let target = |dst| element_mut_ptr::<E>(dst, start).cast::<[E::Stored; N]>();
        // SAFETY: as above, and the elements of the destination are writable.
        unsafe { target(to.dst).write_unaligned(folded) };
        for extra_dst in to.extra_dsts {
            // SAFETY: as above.
            unsafe { target(*extra_dst).write_unaligned(folded) };
        }
    }
    end
}

/// Folds vectors of exactly one element, without an accumulator in memory.
///
/// # Safety
/// Each destination and each source must contain one element, and the processor must have the
/// instructions that `E` needs.
#[inline(always)]
unsafe fn fold_one<E, O>(to: FoldTarget<'_>, sources: &[Src<'_>], arg: O::Arg)
where
    E: Element,
    O: FoldOperator<E::Acc>,
{
    // SAFETY: the caller guarantees one element.
    let load = |source: &Src<'_>| E::load(unsafe { element_ptr::<E>(*source, 0).read_unaligned() });
    let Some((first, others)) = sources.split_first() else { return };
    let first = O::begin(load(first), arg);
    let folded = others.iter().map(load).fold(first, |acc, next| O::combine(acc, next, arg));
    let stored = E::store(O::finish(folded, arg));
    // SAFETY: as above.
    unsafe { element_mut_ptr::<E>(to.dst, 0).write_unaligned(stored) };
    to.copy_to_extra_dsts::<E>(0, 1);
}

/// Multiplies the elements with the index `start` and above by `factor`. Bytes at the end that are
/// not a whole element remain unchanged.
///
/// # Safety
/// `src` must be as long as `dst`, and the processor must have the instructions that `E` needs.
#[inline(always)]
unsafe fn scale_blocks<E>(dst: Dst<'_>, src: Src<'_>, factor: f64, mut start: usize)
where
    E: Element,
    E::Acc: Real,
{
    let count = dst.len() / size_of::<E::Stored>();
    let factor = E::Acc::from_factor(factor);
    let mut block = AccumulatorBlock::new();
    while start < count {
        let acc = block.accumulators::<E::Acc>(count - start);
        let source = element_ptr::<E>(src, start);
        // SAFETY: `src` has as many elements as `dst`, and `acc` has at most as many elements as
        // `dst` has from `start` on.
        let acc = unsafe { load::<E, Sum>(acc, source, ()) };
        for slot in acc.iter_mut() {
            *slot = slot.times(factor);
        }
        let target = element_mut_ptr::<E>(dst, start);
        // `Sum` does not transform the values before they are stored.
        //
        // SAFETY: `dst` has `count` elements, and `acc` has at most `count - start` elements.
        unsafe { store::<E, Sum>(target, acc, ()) }
        start += acc.len();
    }
}

/// Returns the number of elements of `dst` in whole vectors of 8 elements. This is also the index
/// of the first element after them.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn elements_in_whole_vectors<E: Element>(dst: Dst<'_>) -> usize {
    dst.len() / size_of::<E::Stored>() / LANES * LANES
}

/// Returns the address of an element of a source. Does not access the memory.
#[inline(always)]
fn element_ptr<E: Element>(src: Src<'_>, index: usize) -> *const E::Stored {
    src.as_ptr().cast::<E::Stored>().wrapping_add(index)
}

/// Returns the address of an element of a destination. Does not access the memory.
#[inline(always)]
fn element_mut_ptr<E: Element>(dst: Dst<'_>, index: usize) -> *mut E::Stored {
    dst.as_mut_ptr().cast::<E::Stored>().wrapping_add(index)
}
