//! The memory that a back end allocates for the caller's buffers.

use crate::base::error::Result;
use crate::device::memory::DeviceMemory;
use crate::transport::arena;

/// Memory that a back end has allocated. It is freed when this object is dropped.
pub trait BackendMemory: Send {
    /// Returns the address of the first byte.
    fn as_mut_ptr(&self) -> *mut u8;

    /// Returns the requested number of bytes.
    fn len(&self) -> usize;

    /// Returns true if the caller requested 0 bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

crate::base::trait_object_debug::impl_debug_of_objects!(BackendMemory);

impl BackendMemory for arena::ArenaBlock {
    fn as_mut_ptr(&self) -> *mut u8 {
        self.as_mut_ptr()
    }

    fn len(&self) -> usize {
        self.len()
    }
}

impl BackendMemory for DeviceMemory {
    fn as_mut_ptr(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(usize::try_from(self.address()).unwrap_or(0))
    }

    fn len(&self) -> usize {
        Self::len(self)
    }
}

/// Allocates memory in the library's arena. Back ends without an allocator of their own use this
/// function.
pub(super) fn allocate_host_memory(bytes: usize) -> Result<Box<dyn BackendMemory>> {
    Ok(Box::new(arena::allocate(bytes)?))
}
