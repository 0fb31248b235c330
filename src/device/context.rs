//! The primary context of a device: the one that CUDA's runtime, and so everybody else in the
//! process, uses.

use super::driver::{self, CudaDriver, CudaHandle};
use crate::base::error::Result;
use std::ffi::c_int;
use std::marker::PhantomData;
use std::sync::Arc;

/// A device's primary context, kept.
#[derive(Debug)]
pub struct CudaContext {
    driver: &'static CudaDriver,
    device: usize,
    ordinal: c_int,
    handle: CudaHandle,
}

/// The context is current on the calling thread until this is dropped; then the one before it is
/// again.
#[derive(Debug)]
pub struct CurrentContext<'a> {
    context: &'a CudaContext,
    /// It belongs to a thread.
    _here: PhantomData<*const ()>,
}

impl CudaContext {
    /// That of a device, which is made if nobody has done so.
    ///
    /// # Errors
    /// `NotFound` where there is no driver, `InvalidArgument` for a device that does not exist,
    /// `Backend`, `OutOfMemory`.
    pub fn primary(device: usize) -> Result<Arc<Self>> {
        let driver = driver::get_or_load()?;
        let ordinal = driver.ordinal(device)?;
        let mut handle = 0;
        // SAFETY: there is room for a handle.
        let code = unsafe { (driver.functions.primary_retain)(&raw mut handle, ordinal) };
        driver.check("cuDevicePrimaryCtxRetain", code)?;
        Ok(Arc::new(Self { driver, device, ordinal, handle }))
    }

    /// Its device.
    pub fn device(&self) -> usize {
        self.device
    }

    /// The driver that it is of.
    pub fn driver(&self) -> &'static CudaDriver {
        self.driver
    }

    /// Makes it current on the calling thread.
    ///
    /// # Errors
    /// `Backend`.
    pub fn make_current(&self) -> Result<CurrentContext<'_>> {
        // SAFETY: the context is kept, and so valid.
        let code = unsafe { (self.driver.functions.ctx_push)(self.handle) };
        self.driver.check("cuCtxPushCurrent", code)?;
        Ok(CurrentContext { context: self, _here: PhantomData })
    }
}

impl Drop for CurrentContext<'_> {
    fn drop(&mut self) {
        let mut popped: CudaHandle = 0;
        let driver = self.context.driver;
        // SAFETY: takes off what `make_current` has put there; there is room for the handle.
        let code = unsafe { (driver.functions.ctx_pop)(&raw mut popped) };
        super::stream::log_failure(driver.check("cuCtxPopCurrent", code));
    }
}

impl Drop for CudaContext {
    fn drop(&mut self) {
        // SAFETY: it was retained once, by `primary`.
        let code = unsafe { (self.driver.functions.primary_release)(self.ordinal) };
        super::stream::log_failure(self.driver.check("cuDevicePrimaryCtxRelease", code));
    }
}
