//! Buffers for calls: private memory of the process, or memory of `dist_mem_alloc`, which all ranks
//! of a host can access directly.

#![allow(unsafe_code, reason = "memory of the C ABI")]

use crate::library::{allocate, free};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// A buffer of `i32` values.
#[derive(Debug)]
pub(crate) enum CallBuffer {
    Own(Vec<i32>),
    Arena(ArenaBuffer),
}

/// A buffer that `dist_mem_alloc` allocated.
#[derive(Debug)]
pub(crate) struct ArenaBuffer {
    start: NonNull<i32>,
    len: usize,
}

// SAFETY: the memory belongs to the process; any thread may use and free it.
unsafe impl Send for ArenaBuffer {}

impl CallBuffer {
    /// Returns a buffer that is full of `value`. If `is_arena` is set and the allocation succeeds,
    /// the buffer is in the library's memory.
    pub(crate) fn filled(len: usize, value: i32, is_arena: bool) -> Self {
        let start = if is_arena { allocate(len) } else { None };
        let mut buffer = match start {
            Some(start) => Self::Arena(ArenaBuffer { start, len }),
            None => return Self::Own(vec![value; len]),
        };
        buffer.fill(value);
        buffer
    }

    pub(crate) fn is_arena(&self) -> bool {
        matches!(self, Self::Arena(_))
    }
}

impl Deref for CallBuffer {
    type Target = [i32];

    fn deref(&self) -> &[i32] {
        match self {
            Self::Own(values) => values,
            // SAFETY: the allocation has this length, and no call in progress uses it.
            Self::Arena(arena) => unsafe {
                std::slice::from_raw_parts(arena.start.as_ptr(), arena.len)
            },
        }
    }
}

impl DerefMut for CallBuffer {
    fn deref_mut(&mut self) -> &mut [i32] {
        match self {
            Self::Own(values) => values,
            // SAFETY: the allocation has this length, and no call in progress uses it.
            Self::Arena(arena) => unsafe {
                std::slice::from_raw_parts_mut(arena.start.as_ptr(), arena.len)
            },
        }
    }
}

impl Drop for ArenaBuffer {
    fn drop(&mut self) {
        free(self.start);
    }
}
