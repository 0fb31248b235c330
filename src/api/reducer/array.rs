//! [`Array`]: numbers in memory of the library that a caller updates in place through a pointer, or
//! that operations read and write.

#![allow(unsafe_code, reason = "the caller holds pointers to the numbers")]

use crate::base::buffer::Dst;
use std::cell::UnsafeCell;
use std::ops::Range;

/// An array of numbers that are initially zero.
#[derive(Debug)]
pub(super) struct Array<T: Copy>(Box<[UnsafeCell<T>]>);

// SAFETY: the library reads and writes the numbers only in calls during which the caller must not
// use them, and only one such call runs at a time.
unsafe impl<T: Copy + Send> Sync for Array<T> {}

impl<T: Copy + Default> Array<T> {
    pub(super) fn new(count: usize) -> Self {
        Self((0..count).map(|_| UnsafeCell::new(T::default())).collect())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn as_mut_ptr(&self) -> *mut T {
        UnsafeCell::raw_get(self.0.as_ptr())
    }

    /// Returns the bytes of the array. The user of the view must keep the array alive.
    pub(super) fn view(&self) -> Dst<'static> {
        // SAFETY: the array has that many bytes, and no code forms a reference to its numbers.
        unsafe { Dst::new(self.as_mut_ptr().cast(), size_of_val(&*self.0)) }
    }

    pub(super) fn get(&self, index: usize) -> T {
        // SAFETY: the address is that of a number of this array, and no thread writes the number
        // during the call.
        unsafe { self.0[index].get().read() }
    }

    pub(super) fn set(&self, index: usize, value: T) {
        // SAFETY: the address is that of a number of this array, and no other thread uses the
        // number during the call.
        unsafe { self.0[index].get().write(value) }
    }
}

impl Array<f32> {
    /// Appends the little-endian bytes of a range of numbers.
    pub(super) fn write_to(&self, range: Range<usize>, bytes: &mut Vec<u8>) {
        bytes.reserve(range.len() * size_of::<f32>());
        range.for_each(|index| bytes.extend_from_slice(&self.get(index).to_le_bytes()));
    }

    /// Sets the numbers from index `begin` on to the values in `bytes`, which are little endian.
    pub(super) fn read_from(&self, begin: usize, bytes: &[u8]) {
        let (words, _) = bytes.as_chunks::<{ size_of::<f32>() }>();
        for (index, word) in words.iter().enumerate() {
            self.set(begin + index, f32::from_le_bytes(*word));
        }
    }
}
