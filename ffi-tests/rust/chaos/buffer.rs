//! Memory of a call: the process's own, or the library's, which ranks of a host reach directly.

#![allow(unsafe_code, reason = "memory of the C ABI")]

use crate::library::{allocate, free};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// So many numbers.
#[derive(Debug)]
pub(crate) enum Buffer {
    Own(Vec<i32>),
    Arena(Arena),
}

/// Memory of `dist_mem_alloc`.
#[derive(Debug)]
pub(crate) struct Arena {
    start: NonNull<i32>,
    len: usize,
}

// SAFETY: memory of the process, which any thread may use and free.
unsafe impl Send for Arena {}

impl Buffer {
    /// A buffer that is full of `value`; in the library's memory if that is wanted, and to be had.
    pub(crate) fn full(len: usize, value: i32, is_arena: bool) -> Self {
        let start = if is_arena { allocate(len) } else { None };
        let mut buffer = match start {
            Some(start) => Self::Arena(Arena { start, len }),
            None => return Self::Own(vec![value; len]),
        };
        buffer.fill(value);
        buffer
    }

    pub(crate) fn is_arena(&self) -> bool {
        matches!(self, Self::Arena(_))
    }
}

impl Deref for Buffer {
    type Target = [i32];

    fn deref(&self) -> &[i32] {
        match self {
            Self::Own(values) => values,
            // SAFETY: allocated with this length, and lent to no call that has not returned.
            Self::Arena(arena) => unsafe {
                std::slice::from_raw_parts(arena.start.as_ptr(), arena.len)
            },
        }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [i32] {
        match self {
            Self::Own(values) => values,
            // SAFETY: as above.
            Self::Arena(arena) => unsafe {
                std::slice::from_raw_parts_mut(arena.start.as_ptr(), arena.len)
            },
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        free(self.start);
    }
}
