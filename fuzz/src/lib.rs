//! Measures the memory that an input takes; all fuzz targets use it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// More bytes than any input needs, and fewer than a length field can request.
const MOST_BYTES: usize = 4 << 20;

/// An allocator that counts the allocated bytes.
struct Meter;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static METER: Meter = Meter;

/// Runs a target on an input, and panics if it allocates more than 4 MiB at a time.
pub fn metered(input: &[u8], target: fn(&[u8])) {
    let before = NOW.load(Relaxed);
    PEAK.store(before, Relaxed);
    target(input);
    let taken = PEAK.load(Relaxed) - before;
    assert!(taken <= MOST_BYTES, "{taken} bytes of memory for {} bytes of input", input.len());
}

impl Meter {
    fn count(more: usize) {
        let now = NOW.fetch_add(more, Relaxed) + more;
        PEAK.fetch_max(now, Relaxed);
    }
}

// SAFETY: the system allocator does all the work, and the counters allocate nothing.
unsafe impl GlobalAlloc for Meter {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::count(layout.size());
        // SAFETY: the caller meets the requirements of the system allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::count(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::count(size);
        NOW.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}
