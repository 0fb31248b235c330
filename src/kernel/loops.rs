//! The loops: blocks of elements are folded in an accumulator on the stack, then stored. Two
//! sources need none: strides of them are folded in registers, so that stores begin while later
//! elements are still on their way.
//!
//! The accumulator aliases nothing, so that the compiler vectorises each pass without asking
//! whether `dst` is one of the sources; and a block is read from every source before any of it is
//! written, which is what makes folding in place right. Each loop is compiled for the baseline of
//! the target and for AVX2; neither contracts a product and a sum, so both give the same bits.
//!
//! What a loop calls is `inline(always)`, to take on the instruction set of the loop.

use super::element::{Avg, Element, FoldOperator, Numeric, Real, Sum};
#[cfg(target_arch = "x86_64")]
use super::f32x8::{F32x8, LANES};
use crate::base::buffer::{Dst, Src};
use std::mem::MaybeUninit;
use std::ops::Range;

/// A compiled fold, with the number of ranks that an average divides by. The caller vouches that
/// every destination and every source is as long as the first destination, that this is a multiple
/// of the size of the kernel's element, and that the processor can run it.
pub(super) type FoldKernel = unsafe fn(FoldTarget<'_>, &[Src<'_>], usize);

/// Where a fold goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoldTarget<'a> {
    pub(super) dst: Dst<'a>,
    /// The same goes there.
    pub(super) extra_dsts: &'a [Dst<'a>],
}

/// A compiled scaling; the obligations are those of [`FoldKernel`].
pub(super) type ScaleKernel = unsafe fn(Dst<'_>, Src<'_>, f64);

/// A compiled division by a number of ranks; the obligations are those of [`FoldKernel`].
pub(super) type AverageKernel = unsafe fn(Dst<'_>, usize);

/// The size of the accumulator: it and one block of every source stay in the first-level cache.
const BLOCK_BYTES: usize = 4096;

/// The accumulator. Uninitialised at first: clearing it would cost a small message more than the
/// fold.
#[repr(align(64))]
struct AccumulatorBlock([MaybeUninit<u8>; BLOCK_BYTES]);

impl AccumulatorBlock {
    #[inline(always)]
    const fn new() -> Self {
        Self([const { MaybeUninit::uninit() }; BLOCK_BYTES])
    }

    /// At most `limit` accumulators.
    #[inline(always)]
    fn accumulators<A: Copy>(&mut self, limit: usize) -> &mut [MaybeUninit<A>] {
        const { assert!(align_of::<A>() <= align_of::<Self>()) };
        let count = limit.min(BLOCK_BYTES / size_of::<A>());
        let first = self.0.as_mut_ptr().cast::<MaybeUninit<A>>();
        // SAFETY: `count` of them fit, the block is aligned for them and borrowed as long, and any
        // bytes are a `MaybeUninit`.
        unsafe { std::slice::from_raw_parts_mut(first, count) }
    }
}

/// The fold for the target's baseline, and for single elements, for which the others have no use
/// for what they are compiled for.
///
/// # Safety
/// As [`FoldKernel`] says.
pub(super) unsafe fn fold_portable<E, O>(to: FoldTarget<'_>, sources: &[Src<'_>], ranks: usize)
where
    E: Element,
    O: FoldOperator<E::Acc>,
{
    if to.dst.len() == size_of::<E::Stored>() {
        // SAFETY: the caller's promise is the same, and that is one element.
        unsafe { fold_one::<E, O>(to, sources, O::finish_arg(ranks)) }
    } else {
        // SAFETY: the caller's promise is the same.
        unsafe { fold_blocks::<E, O>(to, sources, ranks, 0) }
    }
}

/// The fold for AVX2.
///
/// # Safety
/// As [`FoldKernel`] says; the processor must have AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn fold_avx2<E, O>(to: FoldTarget<'_>, sources: &[Src<'_>], ranks: usize)
where
    E: Element,
    O: FoldOperator<E::Acc>,
{
    // SAFETY: the caller's promise is the same.
    unsafe { fold_blocks::<E, O>(to, sources, ranks, 0) }
}

/// The scaling for the target's baseline.
///
/// # Safety
/// As [`ScaleKernel`] says.
pub(super) unsafe fn scale_portable<E>(dst: Dst<'_>, src: Src<'_>, factor: f64)
where
    E: Element,
    E::Acc: Real,
{
    // SAFETY: the caller's promise is the same.
    unsafe { scale_blocks::<E>(dst, src, factor, 0) }
}

/// The scaling for AVX2.
///
/// # Safety
/// As [`ScaleKernel`] says; the processor must have AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn scale_avx2<E>(dst: Dst<'_>, src: Src<'_>, factor: f64)
where
    E: Element,
    E::Acc: Real,
{
    // SAFETY: the caller's promise is the same.
    unsafe { scale_blocks::<E>(dst, src, factor, 0) }
}

/// The average for the target's baseline.
///
/// # Safety
/// As [`AverageKernel`] says.
pub(super) unsafe fn average_portable<E>(dst: Dst<'_>, ranks: usize)
where
    E: Element,
    E::Acc: Numeric,
{
    // SAFETY: the caller's promise is the same.
    unsafe { average_blocks::<E>(dst, ranks, 0) }
}

/// The average for AVX2.
///
/// # Safety
/// As [`AverageKernel`] says; the processor must have AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn average_avx2<E>(dst: Dst<'_>, ranks: usize)
where
    E: Element,
    E::Acc: Numeric,
{
    // SAFETY: the caller's promise is the same.
    unsafe { average_blocks::<E>(dst, ranks, 0) }
}

/// The average of a small float for AVX2 and F16C.
///
/// # Safety
/// As [`AverageKernel`] says; the processor must have AVX2 and F16C.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
pub(super) unsafe fn average_f32x8<E, V>(dst: Dst<'_>, ranks: usize)
where
    E: Element<Acc = f32>,
    V: Element<Acc = F32x8>,
{
    // SAFETY: the caller's promise is the same, and those of octets are enabled.
    unsafe { average_blocks::<V>(dst, ranks, 0) }
    let rest = elements_in_whole_vectors::<E>(dst);
    // SAFETY: the caller's promise is the same.
    unsafe { average_blocks::<E>(dst, ranks, rest) }
}

/// The fold of a small float for AVX2 and F16C: whole octets `V`, then the rest one by one.
///
/// # Safety
/// As [`FoldKernel`] says; the processor must have AVX2 and F16C.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
pub(super) unsafe fn fold_f32x8<E, V, O>(to: FoldTarget<'_>, sources: &[Src<'_>], ranks: usize)
where
    E: Element<Acc = f32>,
    V: Element<Acc = F32x8>,
    O: FoldOperator<F32x8> + FoldOperator<f32>,
{
    // SAFETY: the caller's promise is the same, and those of octets are enabled.
    unsafe { fold_blocks::<V, O>(to, sources, ranks, 0) }
    let rest = elements_in_whole_vectors::<E>(to.dst);
    // SAFETY: the caller's promise is the same.
    unsafe { fold_blocks::<E, O>(to, sources, ranks, rest) }
}

/// The scaling of a small float for AVX2 and F16C.
///
/// # Safety
/// As [`ScaleKernel`] says; the processor must have AVX2 and F16C.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
pub(super) unsafe fn scale_f32x8<E, V>(dst: Dst<'_>, src: Src<'_>, factor: f64)
where
    E: Element<Acc = f32>,
    V: Element<Acc = F32x8>,
{
    // SAFETY: the caller's promise is the same, and those of octets are enabled.
    unsafe { scale_blocks::<V>(dst, src, factor, 0) }
    let rest = elements_in_whole_vectors::<E>(dst);
    // SAFETY: the caller's promise is the same.
    unsafe { scale_blocks::<E>(dst, src, factor, rest) }
}

/// Folds the elements from `start` on; bytes that make no whole element are left.
///
/// # Safety
/// Every source and every twin must be as long as `dst`, and the processor must have what `E`
/// needs.
#[inline(always)]
unsafe fn fold_blocks<E, O>(to: FoldTarget<'_>, sources: &[Src<'_>], ranks: usize, mut start: usize)
where
    E: Element,
    O: FoldOperator<E::Acc>,
{
    let count = to.dst.len() / size_of::<E::Stored>();
    let ending = O::finish_arg(ranks);
    if let [first, second] = sources {
        // SAFETY: the caller's promise is the same.
        start = unsafe { fold_two_sources::<E, O>(to, (*first, *second), start..count, ending) };
    }
    let mut block = AccumulatorBlock::new();
    while start < count {
        let acc = block.accumulators::<E::Acc>(count - start);
        let (acc, rest): (&mut [E::Acc], _) = match sources {
            [first, second, rest @ ..] => {
                let (first, second) =
                    (element_ptr::<E>(*first, start), element_ptr::<E>(*second, start));
                // SAFETY: the sources have as many elements as `dst`, so all from `start` on.
                (unsafe { load_and_fold_pair::<E, O>(acc, first, second) }, rest)
            }
            [only] => {
                let only = element_ptr::<E>(*only, start);
                // SAFETY: as above.
                (unsafe { load::<E>(acc, only) }, &[][..])
            }
            [] => return,
        };
        for source in rest {
            let source = element_ptr::<E>(*source, start);
            // SAFETY: as above.
            unsafe { fold_into::<E, O>(acc, source) }
        }
        let target = element_mut_ptr::<E>(to.dst, start);
        // SAFETY: `dst` has `count` elements, and `acc` no more than those from `start` on.
        unsafe { store::<E, O>(target, acc, ending) }
        to.copy_to_extra_dsts::<E>(start, acc.len());
        start += acc.len();
    }
}

impl FoldTarget<'_> {
    /// Copies elements of `dst` to its twins, where the nearest cache still has them.
    #[inline(always)]
    fn copy_to_extra_dsts<E: Element>(self, start: usize, count: usize) {
        let (start, len) = (start * size_of::<E::Stored>(), count * size_of::<E::Stored>());
        for twin in self.extra_dsts {
            twin.slice(start, len).copy_from(self.dst.slice(start, len).as_src());
        }
    }
}

/// Folds two sources as far as there are whole strides, of a size that stays in registers; up to
/// which element that is.
///
/// # Safety
/// As [`fold_strides`] says.
#[inline(always)]
unsafe fn fold_two_sources<E, O>(
    to: FoldTarget<'_>,
    sources: (Src<'_>, Src<'_>),
    elements: Range<usize>,
    ending: O::FinishArg,
) -> usize
where
    E: Element,
    O: FoldOperator<E::Acc>,
{
    match size_of::<E::Acc>() {
        // SAFETY: the caller's promise is the same.
        16.. => unsafe { fold_strides::<E, O, 4>(to, sources, elements, ending) },
        // SAFETY: as above.
        8.. => unsafe { fold_strides::<E, O, 16>(to, sources, elements, ending) },
        // SAFETY: as above.
        4.. => unsafe { fold_strides::<E, O, 32>(to, sources, elements, ending) },
        // SAFETY: as above.
        _ => unsafe { fold_strides::<E, O, 64>(to, sources, elements, ending) },
    }
}

/// Each stride is read from both sources before it is written, which makes folding in place right.
///
/// # Safety
/// The sources, `dst` and the twins must have all these elements, whatever the alignment; the
/// processor must have what `E` needs.
#[inline(always)]
unsafe fn fold_strides<E, O, const N: usize>(
    to: FoldTarget<'_>,
    (first, second): (Src<'_>, Src<'_>),
    elements: Range<usize>,
    ending: O::FinishArg,
) -> usize
where
    E: Element,
    O: FoldOperator<E::Acc>,
{
    let end = elements.start + elements.len() / N * N;
    for start in (elements.start..end).step_by(N) {
        let stride = |source| element_ptr::<E>(source, start).cast::<[E::Stored; N]>();
        // SAFETY: `N` elements from `start` on are among those that can be read.
        let earlier = unsafe { stride(first).read_unaligned() };
        // SAFETY: as above.
        let later = unsafe { stride(second).read_unaligned() };
        let folded: [E::Stored; N] = std::array::from_fn(|index| {
            let folded = O::combine(E::load(earlier[index]), E::load(later[index]));
            E::store(O::finish(folded, ending))
        });
        let target = |dst| element_mut_ptr::<E>(dst, start).cast::<[E::Stored; N]>();
        // SAFETY: as above, and they can be written.
        unsafe { target(to.dst).write_unaligned(folded) };
        for twin in to.extra_dsts {
            // SAFETY: as above.
            unsafe { target(*twin).write_unaligned(folded) };
        }
    }
    end
}

/// Folds single elements, which needs no accumulator in memory.
///
/// # Safety
/// Each destination and each source must have an element, and the processor must have what `E`
/// needs.
#[inline(always)]
unsafe fn fold_one<E, O>(to: FoldTarget<'_>, sources: &[Src<'_>], ending: O::FinishArg)
where
    E: Element,
    O: FoldOperator<E::Acc>,
{
    // SAFETY: the caller vouches for an element.
    let load = |source: &Src<'_>| E::load(unsafe { element_ptr::<E>(*source, 0).read_unaligned() });
    let Some(folded) = sources.iter().map(load).reduce(O::combine) else { return };
    let stored = E::store(O::finish(folded, ending));
    // SAFETY: as above.
    unsafe { element_mut_ptr::<E>(to.dst, 0).write_unaligned(stored) };
    to.copy_to_extra_dsts::<E>(0, 1);
}

/// Scales the elements from `start` on; bytes that make no whole element are left.
///
/// # Safety
/// `src` must be as long as `dst`, and the processor must have what `E` needs.
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
        // SAFETY: `src` has as many elements as `dst`, so all from `start` on.
        let acc = unsafe { load::<E>(acc, source) };
        for slot in acc.iter_mut() {
            *slot = slot.times(factor);
        }
        let target = element_mut_ptr::<E>(dst, start);
        // SAFETY: `dst` has `count` elements, and `acc` no more than those from `start` on.
        unsafe { store::<E, Sum>(target, acc, ()) }
        start += acc.len();
    }
}

/// Divides the elements from `start` on; bytes that make no whole element are left.
///
/// # Safety
/// The processor must have what `E` needs.
#[inline(always)]
unsafe fn average_blocks<E>(dst: Dst<'_>, ranks: usize, mut start: usize)
where
    E: Element,
    E::Acc: Numeric,
{
    let count = dst.len() / size_of::<E::Stored>();
    let ending = <Avg as FoldOperator<E::Acc>>::finish_arg(ranks);
    let mut block = AccumulatorBlock::new();
    while start < count {
        let acc = block.accumulators::<E::Acc>(count - start);
        let source = element_ptr::<E>(dst.as_src(), start);
        // SAFETY: `dst` has `count` elements, and `acc` no more than those from `start` on.
        let acc = unsafe { load::<E>(acc, source) };
        let target = element_mut_ptr::<E>(dst, start);
        // SAFETY: as above.
        unsafe { store::<E, Avg>(target, acc, ending) }
        start += acc.len();
    }
}

/// How many elements lie in whole octets.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn elements_in_whole_vectors<E: Element>(dst: Dst<'_>) -> usize {
    dst.len() / size_of::<E::Stored>() / LANES * LANES
}

/// The address of an element; nothing is read.
#[inline(always)]
fn element_ptr<E: Element>(src: Src<'_>, index: usize) -> *const E::Stored {
    src.as_ptr().cast::<E::Stored>().wrapping_add(index)
}

/// The same for one that is written.
#[inline(always)]
fn element_mut_ptr<E: Element>(dst: Dst<'_>, index: usize) -> *mut E::Stored {
    dst.as_mut_ptr().cast::<E::Stored>().wrapping_add(index)
}

/// # Safety
/// As many elements as `acc` has must be readable at `source`, whatever its alignment.
#[inline(always)]
unsafe fn load<E: Element>(
    acc: &mut [MaybeUninit<E::Acc>],
    source: *const E::Stored,
) -> &mut [E::Acc] {
    for (index, slot) in acc.iter_mut().enumerate() {
        // SAFETY: `index` is below the length of `acc`, and the caller vouches for that many.
        let stored = unsafe { source.wrapping_add(index).read_unaligned() };
        slot.write(E::load(stored));
    }
    // SAFETY: every element has just been written.
    unsafe { assume_init(acc) }
}

/// The first two sources at once, which saves a pass over the accumulator.
///
/// # Safety
/// As many elements as `acc` has must be readable at `find_at_or_above` and `second`, whatever the
/// alignment.
#[inline(always)]
unsafe fn load_and_fold_pair<E, O>(
    acc: &mut [MaybeUninit<E::Acc>],
    first: *const E::Stored,
    second: *const E::Stored,
) -> &mut [E::Acc]
where
    E: Element,
    O: FoldOperator<E::Acc>,
{
    for (index, slot) in acc.iter_mut().enumerate() {
        // SAFETY: `index` is below the length of `acc`, and the caller vouches for that many.
        let earlier = unsafe { first.wrapping_add(index).read_unaligned() };
        // SAFETY: as above.
        let later = unsafe { second.wrapping_add(index).read_unaligned() };
        slot.write(O::combine(E::load(earlier), E::load(later)));
    }
    // SAFETY: every element has just been written.
    unsafe { assume_init(acc) }
}

/// # Safety
/// As many elements as `acc` has must be readable at `source`, whatever its alignment.
#[inline(always)]
unsafe fn fold_into<E, O>(acc: &mut [E::Acc], source: *const E::Stored)
where
    E: Element,
    O: FoldOperator<E::Acc>,
{
    for (index, slot) in acc.iter_mut().enumerate() {
        // SAFETY: `index` is below the length of `acc`, and the caller vouches for that many.
        let stored = unsafe { source.wrapping_add(index).read_unaligned() };
        *slot = O::combine(*slot, E::load(stored));
    }
}

/// # Safety
/// As many elements as `acc` has must be writable at `target`, whatever its alignment.
#[inline(always)]
unsafe fn store<E, O>(target: *mut E::Stored, acc: &[E::Acc], ending: O::FinishArg)
where
    E: Element,
    O: FoldOperator<E::Acc>,
{
    for (index, slot) in acc.iter().enumerate() {
        let stored = E::store(O::finish(*slot, ending));
        // SAFETY: `index` is below the length of `acc`, and the caller vouches for that many.
        unsafe { target.wrapping_add(index).write_unaligned(stored) }
    }
}

/// # Safety
/// Every element must have been written.
#[inline(always)]
unsafe fn assume_init<A>(acc: &mut [MaybeUninit<A>]) -> &mut [A] {
    let initialised = std::ptr::from_mut(acc) as *mut [A];
    // SAFETY: the address and length are those of `acc`, which is borrowed for as long; the caller
    // vouches for the contents, and `MaybeUninit<A>` has the layout of `A`.
    unsafe { &mut *initialised }
}
