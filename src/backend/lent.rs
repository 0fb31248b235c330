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
const LEAST: usize = 64;

/// Pieces that nobody uses, by their size.
static FREE: Mutex<BTreeMap<usize, Vec<Dst<'static>>>> = Mutex::new(BTreeMap::new());

fn free() -> MutexGuard<'static, BTreeMap<usize, Vec<Dst<'static>>>> {
    FREE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Some bytes, for as long as somebody holds this.
#[derive(Debug)]
pub(crate) struct Lent {
    memory: Dst<'static>,
    used: usize,
}

impl Lent {
    /// Bytes with any contents.
    pub(crate) fn new(len: usize) -> Self {
        let size = len.next_power_of_two().max(LEAST);
        let known = free().get_mut(&size).and_then(Vec::pop);
        let fresh = || Dst::from(Box::leak(vec![0; size].into_boxed_slice()));
        Self { memory: known.unwrap_or_else(fresh), used: len }
    }

    pub(crate) fn copy_of(bytes: &[u8]) -> Self {
        let lent = Self::new(bytes.len());
        kernel::copy(lent.room(), bytes.into());
        lent
    }

    /// To write them.
    pub(crate) fn room(&self) -> Dst<'static> {
        self.memory.slice(0, self.used)
    }

    pub(crate) fn bytes(&self) -> Src<'static> {
        self.memory.as_src().slice(0, self.used)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        free().entry(self.memory.len()).or_default().push(self.memory);
    }
}
