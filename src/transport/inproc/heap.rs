//! Zeroed heap memory as the backing of a region that the threads of a process share.
#![allow(unsafe_code, reason = "provides one allocation as the backing of a region")]

use crate::base::error::{Error, ErrorKind, Result};
use crate::transport::region::RegionBacking;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::Arc;

/// Zeroed heap memory that begins at a page boundary, as a memory mapping does.
#[derive(Debug)]
pub struct HeapRegion {
    /// The first page boundary in the allocation. The region begins here.
    base: *mut u8,
    len: usize,
    /// The address that the allocator returned.
    start: *mut u8,
    layout: Layout,
}

const PAGE: usize = 4096;

// SAFETY: the value owns the allocation, and its content is accessed only through atomics and
// views.
unsafe impl Send for HeapRegion {}
// SAFETY: as above.
unsafe impl Sync for HeapRegion {}

impl HeapRegion {
    /// Allocates `len` zero bytes.
    ///
    /// # Errors
    /// `OutOfMemory`, with the number of bytes.
    pub fn zeroed(len: usize) -> Result<Self> {
        let refused = || {
            Error::new(ErrorKind::OutOfMemory, format!("cannot allocate a region of {len} bytes"))
        };
        // Request one page more and align the start here, instead of requesting aligned memory. For
        // aligned memory, an allocator writes zeros over the pages that it gets from the system,
        // although the system has zeroed them. All pages would then have memory before their first
        // use.
        let room = len.checked_add(PAGE).ok_or_else(refused)?;
        let layout = Layout::from_size_align(room, align_of::<u64>()).map_err(|_| refused())?;
        // SAFETY: the size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            return Err(refused());
        }
        let base = start.wrapping_add(start.addr().next_multiple_of(PAGE) - start.addr());
        Ok(Self { base, len, start, layout })
    }
}

impl Drop for HeapRegion {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this layout, and freed once.
        unsafe { dealloc(self.start, self.layout) };
    }
}

// SAFETY: the allocation has `len` zero bytes from `base` on, and lives until the drop.
unsafe impl RegionBacking for HeapRegion {
    fn base(&self) -> *mut u8 {
        self.base
    }

    fn bytes(&self) -> usize {
        self.len
    }
}

// SAFETY: the shared heap lives as long as any of its owners.
unsafe impl RegionBacking for Arc<HeapRegion> {
    fn base(&self) -> *mut u8 {
        self.as_ref().base()
    }

    fn bytes(&self) -> usize {
        self.as_ref().bytes()
    }
}
