//! Where a buffer lies, and memory of a device.
//!
//! Freeing waits until the device has done all that it was given: an operation that hangs must be
//! aborted first.

use super::context::CudaContext;
use super::driver::{self, CudaDriver, DeviceAddress, INVALID_VALUE};
use super::stream::log_failure;
use crate::base::error::{Error, Result};
use std::ffi::{c_int, c_uint};
use std::sync::Arc;

const MEMORY_TYPE_ATTRIBUTE: c_int = 2;
const DEVICE_ORDINAL_ATTRIBUTE: c_int = 9;
/// The value of the first for memory of a device, managed memory included.
const DEVICE_MEMORY_TYPE: c_uint = 2;

/// The device that an address belongs to; `None` for host memory, pinned or not, and where no
/// driver is in the process.
///
/// # Errors
/// `Backend` where the driver cannot say.
pub fn device_of(address: usize) -> Result<Option<usize>> {
    driver::already_loaded().map_or(Ok(None), |driver| driver.device_of(address))
}

impl CudaDriver {
    fn device_of(&self, address: usize) -> Result<Option<usize>> {
        let (mut kind, mut device): (c_uint, c_int) = (0, -1);
        let query = self.functions.pointer_attribute;
        // SAFETY: any address may be asked about; there is room for a number.
        let code = unsafe {
            query((&raw mut kind).cast(), MEMORY_TYPE_ATTRIBUTE, address as DeviceAddress)
        };
        // Memory that the driver does not know is the host's.
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
        let unknown = |_| Error::internal(format!("{address:#x} is on no device, says the driver"));
        device.map(Some).map_err(unknown)
    }
}

/// Memory of a device.
#[derive(Debug)]
pub struct DeviceMemory {
    context: Arc<CudaContext>,
    address: DeviceAddress,
    len: usize,
}

impl DeviceMemory {
    /// So many bytes, which are arbitrary.
    ///
    /// # Errors
    /// `OutOfMemory`, `Backend`.
    pub fn new(context: &Arc<CudaContext>, len: usize) -> Result<Self> {
        let _current = context.make_current()?;
        let (driver, mut address) = (context.driver(), 0);
        // SAFETY: there is room for an address; the context is current.
        let code = unsafe { (driver.functions.mem_alloc)(&raw mut address, len) };
        driver.check("cuMemAlloc", code)?;
        Ok(Self { context: Arc::clone(context), address, len })
    }

    /// Where it begins.
    pub fn address(&self) -> DeviceAddress {
        self.address
    }

    /// How long it is.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        let free = || {
            let _current = self.context.make_current()?;
            let driver = self.context.driver();
            // SAFETY: memory of our own, freed once.
            let code = unsafe { (driver.functions.mem_free)(self.address) };
            driver.check("cuMemFree", code)
        };
        log_failure(free());
    }
}
