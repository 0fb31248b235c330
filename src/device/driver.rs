//! The CUDA driver, a shared library of the system: its function table, the file from which it was
//! loaded, and its error texts.

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::log::LogLevel;
use crate::sys::library::{Library, file_of_address, function_table};
use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_void};
use std::fmt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::OnceLock;

/// The file names under which this file looks for the driver.
const LIBRARY_NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];
const SONAME: &str = "libcuda.so.1";

/// The result code of a driver function.
pub(super) type CudaResultCode = c_int;
const SUCCESS: CudaResultCode = 0;
pub(super) const INVALID_VALUE: CudaResultCode = 1;
const OUT_OF_MEMORY: CudaResultCode = 2;
const NO_DEVICE: CudaResultCode = 100;
pub(super) const NOT_READY: CudaResultCode = 600;

/// A context, stream or event of the driver. The driver defines it as an opaque pointer, and this
/// library never dereferences it.
pub type CudaHandle = usize;

/// An address in the memory of a device.
pub type DeviceAddress = u64;

/// The 16 bytes that identify a device uniquely.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct DeviceUuid(pub [u8; 16]);

impl fmt::Display for DeviceUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

function_table! {
    /// The functions of the driver, with their exported names.
    pub struct CudaFunctions {
        required {
            init = c"cuInit": fn(c_uint) -> CudaResultCode;
            driver_get_version = c"cuDriverGetVersion": fn(*mut c_int) -> CudaResultCode;
            get_error_name = c"cuGetErrorName": fn(CudaResultCode, *mut *const c_char) -> CudaResultCode;
            get_error_string = c"cuGetErrorString": fn(CudaResultCode, *mut *const c_char) -> CudaResultCode;
            device_get_count = c"cuDeviceGetCount": fn(*mut c_int) -> CudaResultCode;
            device_get = c"cuDeviceGet": fn(*mut c_int, c_int) -> CudaResultCode;
            primary_retain = c"cuDevicePrimaryCtxRetain": fn(*mut CudaHandle, c_int) -> CudaResultCode;
            primary_release = c"cuDevicePrimaryCtxRelease_v2": fn(c_int) -> CudaResultCode;
            ctx_get_current = c"cuCtxGetCurrent": fn(*mut CudaHandle) -> CudaResultCode;
            ctx_get_device = c"cuCtxGetDevice": fn(*mut c_int) -> CudaResultCode;
            ctx_push = c"cuCtxPushCurrent_v2": fn(CudaHandle) -> CudaResultCode;
            ctx_pop = c"cuCtxPopCurrent_v2": fn(*mut CudaHandle) -> CudaResultCode;
            priority_range = c"cuCtxGetStreamPriorityRange": fn(*mut c_int, *mut c_int) -> CudaResultCode;
            pointer_attribute = c"cuPointerGetAttribute": fn(*mut c_void, c_int, DeviceAddress) -> CudaResultCode;
            mem_alloc = c"cuMemAlloc_v2": fn(*mut DeviceAddress, usize) -> CudaResultCode;
            mem_free = c"cuMemFree_v2": fn(DeviceAddress) -> CudaResultCode;
            mem_host_alloc = c"cuMemHostAlloc": fn(*mut *mut c_void, usize, c_uint) -> CudaResultCode;
            mem_free_host = c"cuMemFreeHost": fn(*mut c_void) -> CudaResultCode;
            copy_to_device = c"cuMemcpyHtoDAsync_v2": fn(DeviceAddress, *const c_void, usize, CudaHandle) -> CudaResultCode;
            copy_to_host = c"cuMemcpyDtoHAsync_v2": fn(*mut c_void, DeviceAddress, usize, CudaHandle) -> CudaResultCode;
            copy_on_device = c"cuMemcpyDtoDAsync_v2": fn(DeviceAddress, DeviceAddress, usize, CudaHandle) -> CudaResultCode;
            fill = c"cuMemsetD8Async": fn(DeviceAddress, c_uchar, usize, CudaHandle) -> CudaResultCode;
            stream_create = c"cuStreamCreateWithPriority": fn(*mut CudaHandle, c_uint, c_int) -> CudaResultCode;
            stream_destroy = c"cuStreamDestroy_v2": fn(CudaHandle) -> CudaResultCode;
            stream_wait_event = c"cuStreamWaitEvent": fn(CudaHandle, CudaHandle, c_uint) -> CudaResultCode;
            event_create = c"cuEventCreate": fn(*mut CudaHandle, c_uint) -> CudaResultCode;
            event_record = c"cuEventRecord": fn(CudaHandle, CudaHandle) -> CudaResultCode;
            event_query = c"cuEventQuery": fn(CudaHandle) -> CudaResultCode;
            event_destroy = c"cuEventDestroy_v2": fn(CudaHandle) -> CudaResultCode;
        }
        optional {
            device_get_uuid_v2 = c"cuDeviceGetUuid_v2": fn(*mut DeviceUuid, c_int) -> CudaResultCode;
            device_get_uuid = c"cuDeviceGetUuid": fn(*mut DeviceUuid, c_int) -> CudaResultCode;
            event_elapsed = c"cuEventElapsedTime": fn(*mut f32, CudaHandle, CudaHandle) -> CudaResultCode;
            stream_is_capturing = c"cuStreamIsCapturing": fn(CudaHandle, *mut c_int) -> CudaResultCode;
        }
    }
}

/// The CUDA driver in this process.
#[derive(Debug)]
pub struct CudaDriver {
    pub(super) functions: CudaFunctions,
    version: i32,
    file: String,
}

static DRIVER: OnceLock<Result<CudaDriver>> = OnceLock::new();

/// Returns the driver. The first call loads and initialises it.
///
/// # Errors
/// `NotFound` with the searched names, `Unsupported` if the driver lacks a required function,
/// `Backend` with the driver's error text if the driver cannot be used.
pub fn get_or_load() -> Result<&'static CudaDriver> {
    DRIVER.get_or_init(load).as_ref().map_err(Clone::clone)
}

/// Returns the driver if this library or other code has already loaded it into this process. Used
/// where a process without devices must not load the driver.
pub fn already_loaded() -> Option<&'static CudaDriver> {
    if DRIVER.get().is_none() && Library::open_loaded(Path::new(SONAME)).is_none() {
        return None;
    }
    get_or_load().ok()
}

fn load() -> Result<CudaDriver> {
    let mut errors = Vec::new();
    let found = LIBRARY_NAMES.iter().find_map(|name| {
        Library::open(name).inspect_err(|error| errors.push(error.message().to_owned())).ok()
    });
    let Some(library) = found else {
        let message = format!(
            "no CUDA driver in this process's search path (LD_LIBRARY_PATH, ld.so.conf): {}",
            errors.join("; ")
        );
        return Err(Error::new(ErrorKind::NotFound, message));
    };
    let file = library.symbol(CudaFunctions::REQUIRED[0]).and_then(file_of_address);
    let file = file.unwrap_or_else(|| LIBRARY_NAMES[0].to_owned());
    let functions = CudaFunctions::find(&library).map_err(|missing| {
        let message = format!("the CUDA driver {file} is too old: it has no {missing:?}");
        Error::new(ErrorKind::Unsupported, message)
    })?;
    let mut driver = CudaDriver { functions, version: 0, file };
    // SAFETY: the function takes a number.
    driver.check("cuInit", unsafe { (functions.init)(0) })?;
    // SAFETY: the pointer refers to a number.
    let code = unsafe { (functions.driver_get_version)(&raw mut driver.version) };
    driver.check("cuDriverGetVersion", code)?;
    Ok(driver)
}

impl CudaDriver {
    /// Returns whether the driver can measure the time between two events.
    pub fn can_measure_time(&self) -> bool {
        self.functions.event_elapsed.is_some()
    }

    /// Returns the CUDA version that the driver supports, for example 12080.
    pub fn version(&self) -> i32 {
        self.version
    }

    /// Returns the file that the driver was loaded from.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Returns the number of devices that this process sees.
    ///
    /// # Errors
    /// `Backend`.
    pub fn device_count(&self) -> Result<usize> {
        let mut count = 0;
        // SAFETY: the pointer refers to a number.
        self.check("cuDeviceGetCount", unsafe {
            (self.functions.device_get_count)(&raw mut count)
        })?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// Returns the index of the device whose context is current on the calling thread; `None` if no
    /// context is current.
    pub fn current_device(&self) -> Option<usize> {
        let mut context: CudaHandle = 0;
        // SAFETY: the pointer refers to a handle.
        let code = unsafe { (self.functions.ctx_get_current)(&raw mut context) };
        if code != SUCCESS || context == 0 {
            return None;
        }
        let mut device = 0;
        // SAFETY: the pointer refers to a number.
        let code = unsafe { (self.functions.ctx_get_device)(&raw mut device) };
        usize::try_from(device).ok().filter(|_| code == SUCCESS)
    }

    /// Returns the unique identifier of a device.
    ///
    /// # Errors
    /// `Unsupported` if the driver does not report it, `Backend`.
    pub fn uuid(&self, device: usize) -> Result<DeviceUuid> {
        let ordinal = self.ordinal(device)?;
        let CudaFunctions { device_get_uuid_v2, device_get_uuid, .. } = self.functions;
        // The newer function distinguishes the partitions of a device (MIG).
        let Some(get) = device_get_uuid_v2.or(device_get_uuid) else {
            let message = "the CUDA driver has no cuDeviceGetUuid: it is older than CUDA 9.2";
            return Err(Error::new(ErrorKind::Unsupported, message));
        };
        let mut uuid = DeviceUuid::default();
        // SAFETY: the pointer refers to 16 bytes.
        self.check("cuDeviceGetUuid", unsafe { get(&raw mut uuid, ordinal) })?;
        Ok(uuid)
    }

    /// Returns the driver's own number (`CUdevice`) of the device with this index.
    pub(super) fn ordinal(&self, device: usize) -> Result<c_int> {
        let count = self.device_count()?;
        let wanted = c_int::try_from(device).ok().filter(|_| device < count);
        let Some(wanted) = wanted else {
            let message = format!(
                "device {device} does not exist: this process sees {count} devices (CUDA_VISIBLE_DEVICES selects \
                 them)"
            );
            return Err(Error::new(ErrorKind::Backend, message));
        };
        let mut ordinal = 0;
        // SAFETY: the pointer refers to a number.
        let code = unsafe { (self.functions.device_get)(&raw mut ordinal, wanted) };
        self.check("cuDeviceGet", code)?;
        Ok(ordinal)
    }

    /// Converts a result code to an error with the driver's error text.
    pub(super) fn check(&self, function: &str, code: CudaResultCode) -> Result<()> {
        if code == SUCCESS {
            return Ok(());
        }
        let CudaFunctions { get_error_name, get_error_string, .. } = self.functions;
        let name = error_text(get_error_name, code).unwrap_or_else(|| format!("error {code}"));
        let words = error_text(get_error_string, code).unwrap_or_default();
        let kind = match code {
            OUT_OF_MEMORY => ErrorKind::OutOfMemory,
            NO_DEVICE => ErrorKind::NotFound,
            _ => ErrorKind::Backend,
        };
        let message = format!("{function}: {words} ({name}; CUDA driver {})", self.file);
        Err(Error::new(kind, message))
    }
}

/// Returns one of the driver's texts for an error code.
fn error_text(
    function: unsafe extern "C" fn(CudaResultCode, *mut *const c_char) -> CudaResultCode,
    code: CudaResultCode,
) -> Option<String> {
    let mut text: *const c_char = std::ptr::null();
    // SAFETY: the pointer refers to a pointer.
    let outcome = unsafe { function(code, &raw mut text) };
    let text = NonNull::new(text.cast_mut()).filter(|_| outcome == SUCCESS)?;
    // SAFETY: the driver's own static, NUL-terminated text.
    Some(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned())
}

/// Logs an error that a destructor cannot return.
pub(super) fn log_failure(outcome: Result<()>) {
    if let Err(error) = outcome {
        crate::log!(LogLevel::Warn, "{error}");
    }
}
