//! Zeroed memory of the process, as the backing of a region that its threads share.
#![allow(unsafe_code, reason = "hands out one allocation as the backing of a region")]

use crate::base::error::{Error, ErrorKind, Result};
use crate::transport::region::Backing;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::Arc;

/// Zeroed memory on the heap, aligned as a mapping would be.
#[derive(Debug)]
pub struct Heap {
    base: *mut u8,
    layout: Layout,
}

// SAFETY: the allocation belongs to the value, and what is in it is only touched through atomics and
// views.
unsafe impl Send for Heap {}
// SAFETY: as above.
unsafe impl Sync for Heap {}

impl Heap {
    /// `len` zero bytes.
    ///
    /// # Errors
    /// `OutOfMemory`, with the number of bytes.
    pub fn zeroed(len: usize) -> Result<Self> {
        let refused =
            || Error::new(ErrorKind::OutOfMemory, format!("no memory for a region of {len} bytes"));
        let layout = Layout::from_size_align(len.max(1), 4096).map_err(|_| refused())?;
        // SAFETY: the size is not zero.
        let base = unsafe { alloc_zeroed(layout) };
        if base.is_null() { Err(refused()) } else { Ok(Self { base, layout }) }
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this layout, and freed once.
        unsafe { dealloc(self.base, self.layout) };
    }
}

// SAFETY: the allocation is `layout.size()` bytes, zeroed, aligned to 4096, and lives until the drop.
unsafe impl Backing for Heap {
    fn base(&self) -> *mut u8 {
        self.base
    }

    fn bytes(&self) -> usize {
        self.layout.size()
    }
}

// SAFETY: the shared heap lives as long as any of its owners.
unsafe impl Backing for Arc<Heap> {
    fn base(&self) -> *mut u8 {
        self.as_ref().base()
    }

    fn bytes(&self) -> usize {
        self.as_ref().bytes()
    }
}
