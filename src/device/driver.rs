//! The CUDA driver: its functions, which of its files was found, and its errors in words.

use crate::base::error::{Error, ErrorKind, Result};
use crate::sys::library::{Library, file_of, function_table};
use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_void};
use std::fmt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::OnceLock;

/// Under which names the driver is looked for.
const NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];
const SONAME: &str = "libcuda.so.1";

/// What its functions return.
pub(super) type Code = c_int;
const SUCCESS: Code = 0;
pub(super) const INVALID_VALUE: Code = 1;
const OUT_OF_MEMORY: Code = 2;
const NO_DEVICE: Code = 100;
pub(super) const NOT_READY: Code = 600;

/// A context, a stream or an event, as the driver calls it: a pointer of its own, which is never
/// followed.
pub type Handle = usize;

/// An address in the memory of a device.
pub type Address = u64;

/// The 16 bytes that tell a device from all others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Uuid(pub [u8; 16]);

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

function_table! {
    /// The functions of the driver, by the names that it exports.
    pub struct Functions {
        required {
            init = c"cuInit": fn(c_uint) -> Code;
            driver_get_version = c"cuDriverGetVersion": fn(*mut c_int) -> Code;
            get_error_name = c"cuGetErrorName": fn(Code, *mut *const c_char) -> Code;
            get_error_string = c"cuGetErrorString": fn(Code, *mut *const c_char) -> Code;
            device_get_count = c"cuDeviceGetCount": fn(*mut c_int) -> Code;
            device_get = c"cuDeviceGet": fn(*mut c_int, c_int) -> Code;
            primary_retain = c"cuDevicePrimaryCtxRetain": fn(*mut Handle, c_int) -> Code;
            primary_release = c"cuDevicePrimaryCtxRelease_v2": fn(c_int) -> Code;
            ctx_get_current = c"cuCtxGetCurrent": fn(*mut Handle) -> Code;
            ctx_get_device = c"cuCtxGetDevice": fn(*mut c_int) -> Code;
            ctx_push = c"cuCtxPushCurrent_v2": fn(Handle) -> Code;
            ctx_pop = c"cuCtxPopCurrent_v2": fn(*mut Handle) -> Code;
            priority_range = c"cuCtxGetStreamPriorityRange": fn(*mut c_int, *mut c_int) -> Code;
            pointer_attribute = c"cuPointerGetAttribute": fn(*mut c_void, c_int, Address) -> Code;
            mem_alloc = c"cuMemAlloc_v2": fn(*mut Address, usize) -> Code;
            mem_free = c"cuMemFree_v2": fn(Address) -> Code;
            mem_host_alloc = c"cuMemHostAlloc": fn(*mut *mut c_void, usize, c_uint) -> Code;
            mem_free_host = c"cuMemFreeHost": fn(*mut c_void) -> Code;
            copy_to_device = c"cuMemcpyHtoDAsync_v2": fn(Address, *const c_void, usize, Handle) -> Code;
            copy_to_host = c"cuMemcpyDtoHAsync_v2": fn(*mut c_void, Address, usize, Handle) -> Code;
            copy_on_device = c"cuMemcpyDtoDAsync_v2": fn(Address, Address, usize, Handle) -> Code;
            fill = c"cuMemsetD8Async": fn(Address, c_uchar, usize, Handle) -> Code;
            stream_create = c"cuStreamCreateWithPriority": fn(*mut Handle, c_uint, c_int) -> Code;
            stream_destroy = c"cuStreamDestroy_v2": fn(Handle) -> Code;
            stream_wait_event = c"cuStreamWaitEvent": fn(Handle, Handle, c_uint) -> Code;
            event_create = c"cuEventCreate": fn(*mut Handle, c_uint) -> Code;
            event_record = c"cuEventRecord": fn(Handle, Handle) -> Code;
            event_query = c"cuEventQuery": fn(Handle) -> Code;
            event_destroy = c"cuEventDestroy_v2": fn(Handle) -> Code;
        }
        optional {
            device_get_uuid_v2 = c"cuDeviceGetUuid_v2": fn(*mut Uuid, c_int) -> Code;
            device_get_uuid = c"cuDeviceGetUuid": fn(*mut Uuid, c_int) -> Code;
            stream_is_capturing = c"cuStreamIsCapturing": fn(Handle, *mut c_int) -> Code;
        }
    }
}

/// The driver of this process.
#[derive(Debug)]
pub struct Driver {
    pub(super) functions: Functions,
    version: i32,
    file: String,
}

static DRIVER: OnceLock<Result<Driver>> = OnceLock::new();

/// The driver, loaded and initialised by the first who asks.
///
/// # Errors
/// `NotFound` with what was looked for, `Unsupported` for one without a function that is needed,
/// `Backend` with its own words where it cannot be used.
pub fn get() -> Result<&'static Driver> {
    DRIVER.get_or_init(load).as_ref().map_err(Clone::clone)
}

/// The driver, if somebody has loaded it into this process: who has no device must not be given
/// one.
pub fn present() -> Option<&'static Driver> {
    if DRIVER.get().is_none() && Library::loaded(Path::new(SONAME)).is_none() {
        return None;
    }
    get().ok()
}

fn load() -> Result<Driver> {
    let mut said = Vec::new();
    let found = NAMES.iter().find_map(|name| {
        Library::open(name).inspect_err(|error| said.push(error.message().to_owned())).ok()
    });
    let Some(library) = found else {
        let message = format!(
            "there is no CUDA driver in this process's search path (LD_LIBRARY_PATH, ld.so.conf): {}",
            said.join("; ")
        );
        return Err(Error::new(ErrorKind::NotFound, message));
    };
    let file = library.symbol(Functions::REQUIRED[0]).and_then(file_of);
    let file = file.unwrap_or_else(|| NAMES[0].to_owned());
    let functions = Functions::find(&library).map_err(|missing| {
        let message = format!("the CUDA driver {file} is too old: it has no {missing:?}");
        Error::new(ErrorKind::Unsupported, message)
    })?;
    let mut driver = Driver { functions, version: 0, file };
    // SAFETY: takes a number.
    driver.check("cuInit", unsafe { (functions.init)(0) })?;
    // SAFETY: there is room for a number.
    let code = unsafe { (functions.driver_get_version)(&raw mut driver.version) };
    driver.check("cuDriverGetVersion", code)?;
    Ok(driver)
}

impl Driver {
    /// The version of CUDA that it was made for, for instance 12080.
    pub fn version(&self) -> i32 {
        self.version
    }

    /// Its file.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The number of devices that this process sees.
    ///
    /// # Errors
    /// `Backend`.
    pub fn device_count(&self) -> Result<usize> {
        let mut count = 0;
        // SAFETY: there is room for a number.
        self.check("cuDeviceGetCount", unsafe {
            (self.functions.device_get_count)(&raw mut count)
        })?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// The device whose context is current on the calling thread; `None` where there is none.
    pub fn current_device(&self) -> Option<usize> {
        let mut context: Handle = 0;
        // SAFETY: there is room for a handle.
        let code = unsafe { (self.functions.ctx_get_current)(&raw mut context) };
        if code != SUCCESS || context == 0 {
            return None;
        }
        let mut device = 0;
        // SAFETY: there is room for a number.
        let code = unsafe { (self.functions.ctx_get_device)(&raw mut device) };
        usize::try_from(device).ok().filter(|_| code == SUCCESS)
    }

    /// What tells a device from all others.
    ///
    /// # Errors
    /// `Unsupported` where the driver does not say, `Backend`.
    pub fn uuid(&self, device: usize) -> Result<Uuid> {
        let ordinal = self.ordinal(device)?;
        let Functions { device_get_uuid_v2, device_get_uuid, .. } = self.functions;
        // The newer one tells parts of a device (MIG) apart.
        let Some(get) = device_get_uuid_v2.or(device_get_uuid) else {
            let message = "the CUDA driver has no cuDeviceGetUuid: it is older than CUDA 9.2";
            return Err(Error::new(ErrorKind::Unsupported, message));
        };
        let mut uuid = Uuid::default();
        // SAFETY: there is room for 16 bytes.
        self.check("cuDeviceGetUuid", unsafe { get(&raw mut uuid, ordinal) })?;
        Ok(uuid)
    }

    /// What the driver calls a device.
    pub(super) fn ordinal(&self, device: usize) -> Result<c_int> {
        let count = self.device_count()?;
        let wanted = c_int::try_from(device).ok().filter(|_| device < count);
        let Some(wanted) = wanted else {
            let message = format!(
                "device {device} does not exist: this process sees {count} (CUDA_VISIBLE_DEVICES chooses)"
            );
            return Err(Error::invalid(message));
        };
        let mut ordinal = 0;
        // SAFETY: there is room for a number.
        let code = unsafe { (self.functions.device_get)(&raw mut ordinal, wanted) };
        self.check("cuDeviceGet", code)?;
        Ok(ordinal)
    }

    /// An error of the driver, in its words.
    pub(super) fn check(&self, function: &str, code: Code) -> Result<()> {
        if code == SUCCESS {
            return Ok(());
        }
        let Functions { get_error_name, get_error_string, .. } = self.functions;
        let name = text_of(get_error_name, code).unwrap_or_else(|| format!("error {code}"));
        let words = text_of(get_error_string, code).unwrap_or_default();
        let kind = match code {
            OUT_OF_MEMORY => ErrorKind::OutOfMemory,
            NO_DEVICE => ErrorKind::NotFound,
            _ => ErrorKind::Backend,
        };
        let message = format!("{function}: {words} ({name}; CUDA driver {})", self.file);
        Err(Error::new(kind, message))
    }
}

/// One of the driver's texts about an error.
fn text_of(
    function: unsafe extern "C" fn(Code, *mut *const c_char) -> Code,
    code: Code,
) -> Option<String> {
    let mut text: *const c_char = std::ptr::null();
    // SAFETY: there is room for a pointer.
    let outcome = unsafe { function(code, &raw mut text) };
    let text = NonNull::new(text.cast_mut()).filter(|_| outcome == SUCCESS)?;
    // SAFETY: the driver's own terminated text, which stays.
    Some(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned())
}
