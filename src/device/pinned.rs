//! Pinned host memory: the device copies from it and to it by itself, while the processor does
//! something else.
//!
//! Freeing may wait until the device has done all that it was given, as with memory of the device.

use super::context::CudaContext;
use super::stream::log_failure;
use crate::base::buffer::Dst;
use crate::base::error::{Error, ErrorKind, Result};
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

/// Pinned memory. It is freed only by [`PinnedMemory::free`], so that views of it never dangle.
#[derive(Debug)]
pub struct PinnedMemory {
    context: Arc<CudaContext>,
    memory: Dst<'static>,
}

impl PinnedMemory {
    /// So many bytes, which are arbitrary.
    ///
    /// # Errors
    /// `OutOfMemory`, `Backend`.
    pub fn new(context: &Arc<CudaContext>, len: usize) -> Result<Self> {
        let _current = context.make_current()?;
        let (driver, mut start): (_, *mut c_void) = (context.driver(), std::ptr::null_mut());
        // SAFETY: there is room for an address; the context is current.
        let code = unsafe { (driver.functions.mem_host_alloc)(&raw mut start, len, 0) };
        driver
            .check("cuMemHostAlloc", code)
            .map_err(|error| error.context(format_args!("{len} bytes of pinned memory")))?;
        let Some(start) = NonNull::new(start.cast()) else {
            let message = format!("cuMemHostAlloc gave no address for {len} bytes");
            return Err(Error::new(ErrorKind::Backend, message));
        };
        // SAFETY: fresh memory of this length, which stays until `free`, whose caller promises that
        // no view is used then.
        let memory = unsafe { Dst::new(start.as_ptr(), len) };
        Ok(Self { context: Arc::clone(context), memory })
    }

    /// All of it.
    pub fn view(&self) -> Dst<'static> {
        self.memory
    }

    /// Gives it back.
    ///
    /// # Safety
    /// Nobody, the device included, may use a view of it any more.
    pub unsafe fn free(self) {
        let free = || {
            let _current = self.context.make_current()?;
            let driver = self.context.driver();
            let start = self.memory.as_mut_ptr().cast();
            // SAFETY: memory of our own, which is not used after this: `self` is gone.
            let code = unsafe { (driver.functions.mem_free_host)(start) };
            driver.check("cuMemFreeHost", code)
        };
        log_failure(free());
    }
}
