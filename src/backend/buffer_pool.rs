//! A pool of buffers for the messages that the library itself sends.
//!
//! The matching engine (which matches sends and receives) borrows a buffer until it reports that
//! the message is complete. Then the buffer returns to the free list. The pool never returns memory
//! to the system, so every buffer has the lifetime `'static` and can be lent without an unsafe
//! contract. The size of the pool is the maximum number of bytes that were in use at one time.

use crate::base::buffer::{Dst, Src};
use crate::base::sync::lock;
use crate::kernel;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

/// The size in bytes of the smallest buffer.
const MIN_BUFFER_BYTES: usize = 64;

/// The unused buffers. The key is their size in bytes.
static FREE_BUFFERS: Mutex<BTreeMap<usize, Vec<Dst<'static>>>> = Mutex::new(BTreeMap::new());

fn free_buffers() -> MutexGuard<'static, BTreeMap<usize, Vec<Dst<'static>>>> {
    lock(&FREE_BUFFERS)
}

/// A buffer from the pool. Dropping it returns the memory to the pool.
#[derive(Debug)]
pub(crate) struct PooledBuffer {
    memory: Dst<'static>,
    used_bytes: usize,
}

impl PooledBuffer {
    /// Returns a buffer of `len` bytes with unspecified contents.
    pub(crate) fn new(len: usize) -> Self {
        let size = len.next_power_of_two().max(MIN_BUFFER_BYTES);
        let recycled = free_buffers().get_mut(&size).and_then(Vec::pop);
        let allocate = || Dst::from(Box::leak(vec![0; size].into_boxed_slice()));
        Self { memory: recycled.unwrap_or_else(allocate), used_bytes: len }
    }

    /// Returns a buffer like [`Self::new`], or `None` if there is not enough memory.
    pub(crate) fn try_new(len: usize) -> Option<Self> {
        let size = len.checked_next_power_of_two()?.max(MIN_BUFFER_BYTES);
        if let Some(memory) = free_buffers().get_mut(&size).and_then(Vec::pop) {
            return Some(Self { memory, used_bytes: len });
        }
        let mut memory = Vec::new();
        memory.try_reserve_exact(size).ok()?;
        memory.resize(size, 0);
        let memory = Dst::from(Box::leak(memory.into_boxed_slice()));
        Some(Self { memory, used_bytes: len })
    }

    pub(crate) fn copy_of(bytes: &[u8]) -> Self {
        let buffer = Self::new(bytes.len());
        kernel::copy(buffer.as_dst(), bytes.into());
        buffer
    }

    /// Returns the used bytes as a destination for writes.
    pub(crate) fn as_dst(&self) -> Dst<'static> {
        self.memory.slice(0, self.used_bytes)
    }

    pub(crate) fn as_src(&self) -> Src<'static> {
        self.memory.as_src().slice(0, self.used_bytes)
    }
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        free_buffers().entry(self.memory.len()).or_default().push(self.memory);
    }
}
