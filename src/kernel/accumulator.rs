//! The accumulator of a fold: a block of elements on the stack, and the passes that load, combine
//! and store its elements. The functions are `inline(always)`, so that they are compiled for the
//! instruction set of the loop that calls them.

use super::element::{Element, FoldOperator};
use std::mem::MaybeUninit;

/// The size of the accumulator. The accumulator and one block of every source stay in the L1 cache.
const BLOCK_BYTES: usize = 4096;

/// The accumulator. It is uninitialised at first: for a small message, clearing it would cost more
/// than the fold.
#[repr(align(64))]
pub(super) struct AccumulatorBlock([MaybeUninit<u8>; BLOCK_BYTES]);

impl AccumulatorBlock {
    #[inline(always)]
    pub(super) const fn new() -> Self {
        Self([const { MaybeUninit::uninit() }; BLOCK_BYTES])
    }

    /// Returns a slice of at most `limit` accumulators.
    #[inline(always)]
    pub(super) fn accumulators<A: Copy>(&mut self, limit: usize) -> &mut [MaybeUninit<A>] {
        const { assert!(align_of::<A>() <= align_of::<Self>()) };
        let count = limit.min(BLOCK_BYTES / size_of::<A>());
        let first = self.0.as_mut_ptr().cast::<MaybeUninit<A>>();
        // SAFETY: `count` accumulators fit, the block is aligned for them and borrowed as long, and
        // any bytes are a valid `MaybeUninit`.
        unsafe { std::slice::from_raw_parts_mut(first, count) }
    }
}

/// Loads elements into the accumulator.
///
/// # Safety
/// As many elements as `acc` has must be readable at `source`, with any alignment.
#[inline(always)]
pub(super) unsafe fn load<E: Element>(
    acc: &mut [MaybeUninit<E::Acc>],
    source: *const E::Stored,
) -> &mut [E::Acc] {
    for (index, slot) in acc.iter_mut().enumerate() {
        // SAFETY: `index` is below the length of `acc`, and the caller guarantees that many
        // elements.
        let stored = unsafe { source.wrapping_add(index).read_unaligned() };
        slot.write(E::load(stored));
    }
    // SAFETY: every element has just been written.
    unsafe { assume_init(acc) }
}

/// Loads and combines the first two sources in one pass, which saves a pass over the accumulator.
///
/// # Safety
/// As many elements as `acc` has must be readable at `first` and `second`, with any alignment.
#[inline(always)]
pub(super) unsafe fn load_and_fold_pair<E, O>(
    acc: &mut [MaybeUninit<E::Acc>],
    first: *const E::Stored,
    second: *const E::Stored,
) -> &mut [E::Acc]
where
    E: Element,
    O: FoldOperator<E::Acc>,
{
    for (index, slot) in acc.iter_mut().enumerate() {
        // SAFETY: `index` is below the length of `acc`, and the caller guarantees that many
        // elements.
        let earlier = unsafe { first.wrapping_add(index).read_unaligned() };
        // SAFETY: as above.
        let later = unsafe { second.wrapping_add(index).read_unaligned() };
        slot.write(O::combine(E::load(earlier), E::load(later)));
    }
    // SAFETY: every element has just been written.
    unsafe { assume_init(acc) }
}

/// Combines elements into the accumulator.
///
/// # Safety
/// As many elements as `acc` has must be readable at `source`, with any alignment.
#[inline(always)]
pub(super) unsafe fn fold_into<E, O>(acc: &mut [E::Acc], source: *const E::Stored)
where
    E: Element,
    O: FoldOperator<E::Acc>,
{
    for (index, slot) in acc.iter_mut().enumerate() {
        // SAFETY: `index` is below the length of `acc`, and the caller guarantees that many
        // elements.
        let stored = unsafe { source.wrapping_add(index).read_unaligned() };
        *slot = O::combine(*slot, E::load(stored));
    }
}

/// Finishes and stores the accumulator.
///
/// # Safety
/// As many elements as `acc` has must be writable at `target`, with any alignment.
#[inline(always)]
pub(super) unsafe fn store<E, O>(target: *mut E::Stored, acc: &[E::Acc], finish_arg: O::FinishArg)
where
    E: Element,
    O: FoldOperator<E::Acc>,
{
    for (index, slot) in acc.iter().enumerate() {
        let stored = E::store(O::finish(*slot, finish_arg));
        // SAFETY: `index` is below the length of `acc`, and the caller guarantees that many
        // elements.
        unsafe { target.wrapping_add(index).write_unaligned(stored) }
    }
}

/// Treats the accumulator as initialised.
///
/// # Safety
/// Every element must have been written.
#[inline(always)]
unsafe fn assume_init<A>(acc: &mut [MaybeUninit<A>]) -> &mut [A] {
    let initialised = std::ptr::from_mut(acc) as *mut [A];
    // SAFETY: the address and length are those of `acc`, which is borrowed for as long. The caller
    // guarantees the contents, and `MaybeUninit<A>` has the layout of `A`.
    unsafe { &mut *initialised }
}
