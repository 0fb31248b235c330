//! Memory for messages that the library itself sends: lent to the engine until it says otherwise,
//! and then used again.
//!
//! It is never given back to the system, so that lending it needs no promise; there is as much as
//! was ever lent at once.

use crate::base::buffer::{Dst, Src};
use crate::kernel;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The smallest piece.
const MIN_BUFFER_BYTES: usize = 64;

/// Pieces that nobody uses, by their size.
static FREE_BUFFERS: Mutex<BTreeMap<usize, Vec<Dst<'static>>>> = Mutex::new(BTreeMap::new());

fn free_buffers() -> MutexGuard<'static, BTreeMap<usize, Vec<Dst<'static>>>> {
    FREE_BUFFERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Some bytes, for as long as somebody holds this.
#[derive(Debug)]
pub(crate) struct PooledBuffer {
    memory: Dst<'static>,
    used_bytes: usize,
}

impl PooledBuffer {
    /// Bytes with any contents.
    pub(crate) fn new(len: usize) -> Self {
        let size = len.next_power_of_two().max(MIN_BUFFER_BYTES);
        let recycled = free_buffers().get_mut(&size).and_then(Vec::pop);
        let allocate = || Dst::from(Box::leak(vec![0; size].into_boxed_slice()));
        Self { memory: recycled.unwrap_or_else(allocate), used_bytes: len }
    }

    pub(crate) fn copy_of(bytes: &[u8]) -> Self {
        let buffer = Self::new(bytes.len());
        kernel::copy(buffer.as_dst(), bytes.into());
        buffer
    }

    /// To write them.
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
