//! The accumulator of a fold: a block of elements on the stack, and the functions that load,
//! combine and store its elements. Each function makes one pass over the accumulator. The functions
//! are `inline(always)`, so that they are compiled for the instruction set of the loop that calls
//! them.

use super::element::{Element, FoldOperator};
use std::mem::MaybeUninit;

/// The size of the accumulator in bytes. It is so small that the accumulator and the same range of
/// every source stay in the L1 cache.
const BLOCK_BYTES: usize = 4096;

/// The memory of the accumulator. It starts uninitialised, because for a small vector, clearing it
/// would take longer than the fold.
#[repr(align(64))]
pub(super) struct AccumulatorBlock([MaybeUninit<u8>; BLOCK_BYTES]);

impl AccumulatorBlock {
    #[inline(always)]
    pub(super) const fn new() -> Self {
        Self([const { MaybeUninit::uninit() }; BLOCK_BYTES])
    }

    /// Returns the accumulator as a slice of elements of type `A`. The slice has `limit` elements,
    /// or fewer if the memory holds fewer.
    #[inline(always)]
    pub(super) fn accumulators<A: Copy>(&mut self, limit: usize) -> &mut [MaybeUninit<A>] {
        const { assert!(align_of::<A>() <= align_of::<Self>()) };
        let count = limit.min(BLOCK_BYTES / size_of::<A>());
        let first = self.0.as_mut_ptr().cast::<MaybeUninit<A>>();
        // SAFETY: `count` elements fit in the block, the block is aligned for them, the slice
        // borrows the block, and any bytes are a valid `MaybeUninit`.
        unsafe { std::slice::from_raw_parts_mut(first, count) }
    }
}

/// Loads elements of the first source into the accumulator.
///
/// # Safety
/// `acc.len()` elements must be readable at `source`, with any alignment.
#[inline(always)]
pub(super) unsafe fn load<E, O>(
    acc: &mut [MaybeUninit<E::Acc>],
    source: *const E::Stored,
    arg: O::Arg,
) -> &mut [E::Acc]
where
    E: Element,
    O: FoldOperator<E::Acc>,
{
    for (index, slot) in acc.iter_mut().enumerate() {
        // SAFETY: `index` is below the length of `acc`, and the caller guarantees that many
        // elements.
        let stored = unsafe { source.wrapping_add(index).read_unaligned() };
        slot.write(O::begin(E::load(stored), arg));
    }
    // SAFETY: every element has just been written.
    unsafe { assume_init(acc) }
}

/// Combines the elements of the first two sources, and stores the results in the accumulator. One
/// pass over the accumulator replaces the two passes of [`load`] and [`fold_into`].
///
/// # Safety
/// `acc.len()` elements must be readable at `first` and at `second`, with any alignment.
#[inline(always)]
pub(super) unsafe fn load_and_fold_pair<E, O>(
    acc: &mut [MaybeUninit<E::Acc>],
    first: *const E::Stored,
    second: *const E::Stored,
    arg: O::Arg,
) -> &mut [E::Acc]
where
    E: Element,
    O: FoldOperator<E::Acc>,
{
    for (index, slot) in acc.iter_mut().enumerate() {
        // SAFETY: `index` is below the length of `acc`, and the caller guarantees that many
        // elements.
        let first_stored = unsafe { first.wrapping_add(index).read_unaligned() };
        // SAFETY: as above.
        let second_stored = unsafe { second.wrapping_add(index).read_unaligned() };
        let first = O::begin(E::load(first_stored), arg);
        slot.write(O::combine(first, E::load(second_stored), arg));
    }
    // SAFETY: every element has just been written.
    unsafe { assume_init(acc) }
}

/// Combines the elements of the accumulator with the elements of one more source.
///
/// # Safety
/// `acc.len()` elements must be readable at `source`, with any alignment.
#[inline(always)]
pub(super) unsafe fn fold_into<E, O>(acc: &mut [E::Acc], source: *const E::Stored, arg: O::Arg)
where
    E: Element,
    O: FoldOperator<E::Acc>,
{
    for (index, slot) in acc.iter_mut().enumerate() {
        // SAFETY: `index` is below the length of `acc`, and the caller guarantees that many
        // elements.
        let stored = unsafe { source.wrapping_add(index).read_unaligned() };
        *slot = O::combine(*slot, E::load(stored), arg);
    }
}

/// Applies [`FoldOperator::finish`] to the elements of the accumulator, and stores the results at
/// `target`.
///
/// # Safety
/// `acc.len()` elements must be writable at `target`, with any alignment.
#[inline(always)]
pub(super) unsafe fn store<E, O>(target: *mut E::Stored, acc: &[E::Acc], arg: O::Arg)
where
    E: Element,
    O: FoldOperator<E::Acc>,
{
    for (index, slot) in acc.iter().enumerate() {
        let stored = E::store(O::finish(*slot, arg));
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
    // SAFETY: the result has the address, the length and the lifetime of `acc`. The caller
    // guarantees that every element is initialised, and `MaybeUninit<A>` has the layout of `A`.
    unsafe { &mut *initialised }
}
