//! The primary context of a device: the one context that the driver shares among all code in the
//! process. The CUDA runtime uses this context, and therefore so does all CUDA code that uses the
//! runtime.

use super::driver::{self, CudaDriver, CudaHandle};
use crate::base::error::Result;
use std::ffi::c_int;
use std::marker::PhantomData;
use std::sync::Arc;

/// A primary context of a device, which this object retains.
#[derive(Debug)]
pub struct CudaContext {
    driver: &'static CudaDriver,
    /// The index of the device, as callers use it: 0 for the first device that this process sees.
    device: usize,
    /// The driver's own number of the device (`CUdevice`), which its functions expect.
    ordinal: c_int,
    /// The driver's handle of the context.
    handle: CudaHandle,
}

/// Keeps a context current on the calling thread. When this guard is dropped, the thread's previous
/// context becomes current again.
#[derive(Debug)]
pub struct CurrentContext<'a> {
    context: &'a CudaContext,
    /// A current context belongs to one thread, so this type is not `Send`.
    _here: PhantomData<*const ()>,
}

impl CudaContext {
    /// Returns the primary context of the device with this index. Creates the context if it does
    /// not exist.
    ///
    /// # Errors
    /// `NotFound` if no driver is found, `Backend` also if the device does not exist,
    /// `OutOfMemory`.
    pub fn primary(device: usize) -> Result<Arc<Self>> {
        let driver = driver::get_or_load()?;
        let ordinal = driver.ordinal(device)?;
        let mut handle = 0;
        // SAFETY: the pointer refers to a handle.
        let code = unsafe { (driver.functions.primary_retain)(&raw mut handle, ordinal) };
        driver.check("cuDevicePrimaryCtxRetain", code)?;
        Ok(Arc::new(Self { driver, device, ordinal, handle }))
    }

    /// Returns the index of the device among the devices that this process sees.
    pub fn device(&self) -> usize {
        self.device
    }

    /// Returns the driver of the context.
    pub fn driver(&self) -> &'static CudaDriver {
        self.driver
    }

    /// Makes the context current on the calling thread.
    ///
    /// # Errors
    /// `Backend`.
    pub fn make_current(&self) -> Result<CurrentContext<'_>> {
        // SAFETY: the context is retained, and so valid.
        let code = unsafe { (self.driver.functions.ctx_push)(self.handle) };
        self.driver.check("cuCtxPushCurrent", code)?;
        Ok(CurrentContext { context: self, _here: PhantomData })
    }
}

impl Drop for CurrentContext<'_> {
    fn drop(&mut self) {
        let mut popped: CudaHandle = 0;
        let driver = self.context.driver;
        // SAFETY: pops the context that `make_current` pushed; the pointer refers to a handle.
        let code = unsafe { (driver.functions.ctx_pop)(&raw mut popped) };
        driver::log_failure(driver.check("cuCtxPopCurrent", code));
    }
}

impl Drop for CudaContext {
    fn drop(&mut self) {
        // SAFETY: `primary` retained the context once.
        let code = unsafe { (self.driver.functions.primary_release)(self.ordinal) };
        driver::log_failure(self.driver.check("cuDevicePrimaryCtxRelease", code));
    }
}
