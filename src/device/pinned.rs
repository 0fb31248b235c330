//! Pinned host memory: the device copies from and to it by DMA, while the processor does other
//! work.
//!
//! Like freeing device memory, freeing pinned memory may wait until the device has completed all
//! submitted work.

use super::context::CudaContext;
use super::driver::log_failure;
use crate::base::buffer::Dst;
use crate::base::error::{Error, ErrorKind, Result};
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

/// An allocation of pinned memory. Only [`PinnedMemory::free`] frees it; dropping it does not. A
/// view of the memory therefore stays valid until that call.
#[derive(Debug)]
pub struct PinnedMemory {
    context: Arc<CudaContext>,
    memory: Dst<'static>,
}

impl PinnedMemory {
    /// Allocates `len` bytes, whose content is undefined.
    ///
    /// # Errors
    /// `OutOfMemory`, `Backend`.
    pub fn new(context: &Arc<CudaContext>, len: usize) -> Result<Self> {
        let _current = context.make_current()?;
        let (driver, mut start): (_, *mut c_void) = (context.driver(), std::ptr::null_mut());
        // SAFETY: the pointer refers to an address; the context is current.
        let code = unsafe { (driver.functions.mem_host_alloc)(&raw mut start, len, 0) };
        driver.check("cuMemHostAlloc", code).map_err(|error| {
            error.context(format_args!("allocating {len} bytes of pinned memory"))
        })?;
        let Some(start) = NonNull::new(start.cast()) else {
            let message = format!("cuMemHostAlloc returned no address for {len} bytes");
            return Err(Error::new(ErrorKind::Backend, message));
        };
        // SAFETY: new memory of this length, which stays valid until `free`, whose caller promises
        // that no view is used then.
        let memory = unsafe { Dst::new(start.as_ptr(), len) };
        Ok(Self { context: Arc::clone(context), memory })
    }

    /// Returns a view of the whole memory.
    pub fn view(&self) -> Dst<'static> {
        self.memory
    }

    /// Frees the memory.
    ///
    /// # Safety
    /// After this call, no code and no device may use a view of the memory.
    pub unsafe fn free(self) {
        let free = || {
            let _current = self.context.make_current()?;
            let driver = self.context.driver();
            let start = self.memory.as_mut_ptr().cast();
            // SAFETY: this object owns the memory, and no code uses it after this: `free` consumes
            // `self`.
            let code = unsafe { (driver.functions.mem_free_host)(start) };
            driver.check("cuMemFreeHost", code)
        };
        log_failure(free());
    }
}
