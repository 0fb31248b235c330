//! The primary context of a device: the one that CUDA's runtime, and so everybody else in the
//! process, uses.

use super::driver::{self, Driver, Handle};
use crate::base::error::Result;
use std::ffi::c_int;
use std::marker::PhantomData;
use std::sync::Arc;

/// A device's primary context, kept.
#[derive(Debug)]
pub struct Context {
    driver: &'static Driver,
    device: usize,
    ordinal: c_int,
    handle: Handle,
}

/// The context is current on the calling thread until this is dropped; then the one before it is
/// again.
#[derive(Debug)]
pub struct Current<'a> {
    context: &'a Context,
    /// It belongs to a thread.
    _here: PhantomData<*const ()>,
}

impl Context {
    /// That of a device, which is made if nobody has done so.
    ///
    /// # Errors
    /// `NotFound` where there is no driver, `InvalidArgument` for a device that does not exist,
    /// `Backend`, `OutOfMemory`.
    pub fn of(device: usize) -> Result<Arc<Self>> {
        let driver = driver::get()?;
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
    pub fn driver(&self) -> &'static Driver {
        self.driver
    }

    /// Makes it current on the calling thread.
    ///
    /// # Errors
    /// `Backend`.
    pub fn enter(&self) -> Result<Current<'_>> {
        // SAFETY: the context is kept, and so valid.
        let code = unsafe { (self.driver.functions.ctx_push)(self.handle) };
        self.driver.check("cuCtxPushCurrent", code)?;
        Ok(Current { context: self, _here: PhantomData })
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        let mut popped: Handle = 0;
        let driver = self.context.driver;
        // SAFETY: takes off what `enter` has put there; there is room for the handle.
        let code = unsafe { (driver.functions.ctx_pop)(&raw mut popped) };
        super::stream::lament(driver.check("cuCtxPopCurrent", code));
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it was retained once, by `of`.
        let code = unsafe { (self.driver.functions.primary_release)(self.ordinal) };
        super::stream::lament(self.driver.check("cuDevicePrimaryCtxRelease", code));
    }
}
