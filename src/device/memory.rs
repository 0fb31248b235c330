//! Device memory: its allocation, and a query for the device to which an address belongs.
//!
//! Freeing waits until the device has completed all submitted work. If an operation hangs, it must
//! be aborted before its memory is freed.

use super::context::CudaContext;
use super::driver::{self, CudaDriver, DeviceAddress, INVALID_VALUE, log_failure};
use crate::base::error::{Error, Result};
use std::ffi::{c_int, c_uint};
use std::sync::Arc;

/// The pointer attribute that says whether an address is in host memory or device memory.
const MEMORY_TYPE_ATTRIBUTE: c_int = 2;
/// The pointer attribute that has the index of the device of an address.
const DEVICE_ORDINAL_ATTRIBUTE: c_int = 9;
/// The value of `MEMORY_TYPE_ATTRIBUTE` for device memory, including managed memory.
const DEVICE_MEMORY_TYPE: c_uint = 2;

/// Returns the index of the device to which an address belongs. Returns `None` for host memory,
/// pinned or not, and if no driver is loaded in the process.
///
/// # Errors
/// `Backend` if the driver cannot tell.
pub fn device_of(address: usize) -> Result<Option<usize>> {
    driver::already_loaded().map_or(Ok(None), |driver| driver.device_of(address))
}

impl CudaDriver {
    fn device_of(&self, address: usize) -> Result<Option<usize>> {
        let (mut kind, mut device): (c_uint, c_int) = (0, -1);
        let query = self.functions.pointer_attribute;
        // SAFETY: the function accepts any address; the pointer refers to a number.
        let code = unsafe {
            query((&raw mut kind).cast(), MEMORY_TYPE_ATTRIBUTE, address as DeviceAddress)
        };
        // An address that the driver does not know is host memory.
        if code == INVALID_VALUE || code == 0 && kind != DEVICE_MEMORY_TYPE {
            return Ok(None);
        }
        self.check("cuPointerGetAttribute", code)?;
        // SAFETY: as above.
        let code = unsafe {
            query((&raw mut device).cast(), DEVICE_ORDINAL_ATTRIBUTE, address as DeviceAddress)
        };
        self.check("cuPointerGetAttribute", code)?;
        let device = usize::try_from(device);
        let unknown = |_| {
            Error::internal(format!(
                "the CUDA driver reports no device for the address {address:#x}"
            ))
        };
        device.map(Some).map_err(unknown)
    }
}

/// An allocation of device memory, which is freed when this object is dropped.
#[derive(Debug)]
pub struct DeviceMemory {
    context: Arc<CudaContext>,
    address: DeviceAddress,
    len: usize,
}

impl DeviceMemory {
    /// Allocates `len` bytes, whose content is undefined.
    ///
    /// # Errors
    /// `OutOfMemory`, `Backend`.
    pub fn new(context: &Arc<CudaContext>, len: usize) -> Result<Self> {
        let _current = context.make_current()?;
        let (driver, mut address) = (context.driver(), 0);
        // SAFETY: the pointer refers to an address; the context is current.
        let code = unsafe { (driver.functions.mem_alloc)(&raw mut address, len) };
        driver.check("cuMemAlloc", code)?;
        Ok(Self { context: Arc::clone(context), address, len })
    }

    /// Returns the start address.
    pub fn address(&self) -> DeviceAddress {
        self.address
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        let free = || {
            let _current = self.context.make_current()?;
            let driver = self.context.driver();
            // SAFETY: this object owns the memory, and frees it once.
            let code = unsafe { (driver.functions.mem_free)(self.address) };
            driver.check("cuMemFree", code)
        };
        log_failure(free());
    }
}
