//! Loads the NCCL library. If an environment variable names a file, that file is loaded, otherwise
//! the file that the dynamic loader finds.

use super::functions::{CommHandle, NcclFunctions, NcclResult, REMOTE_ERROR, SYSTEM_ERROR};
use crate::base::config;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::log::LogLevel;
use crate::device::driver;
use crate::sys::library::{Library as Object, file_of_address};
use std::ffi::{CStr, c_char};
use std::sync::OnceLock;

/// The file names for which the loader searches if no variable is set.
const DEFAULT_FILES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// The variables that may name the file, in order of precedence. The first is the variable of
/// libdist, the second is the variable of vLLM.
const VARIABLES: [config::EnvVariable; 2] = [config::NCCL_LIB, config::VLLM_NCCL_SO_PATH];

/// The loaded NCCL library.
#[derive(Debug)]
pub struct NcclLibrary {
    pub(super) functions: NcclFunctions,
    version: i32,
    file: String,
}

static LIBRARY: OnceLock<Result<NcclLibrary>> = OnceLock::new();

/// Returns the NCCL library of this process. The first call loads the CUDA driver and then the
/// library.
///
/// # Errors
/// `NotFound` with the file names and the places of the search; `Unsupported` for a version that is
/// too old; `Backend`; the errors of the driver.
pub fn get() -> Result<&'static NcclLibrary> {
    LIBRARY.get_or_init(load).as_ref().map_err(Clone::clone)
}

/// Returns the name and the value of the first variable that is set.
fn configured_path() -> Result<Option<(&'static str, String)>> {
    for variable in VARIABLES {
        if let Some(path) = config::read_text(variable)? {
            return Ok(Some((variable.name, path)));
        }
    }
    Ok(None)
}

fn load() -> Result<NcclLibrary> {
    let library = open()?;
    // NCCL uses the CUDA driver that is already loaded, so a driver that cannot be loaded is
    // reported here.
    let driver =
        driver::get_or_load().map_err(|error| error.context("NCCL needs the CUDA driver"))?;
    crate::log!(
        LogLevel::Info,
        "loaded NCCL {} ({}), CUDA driver for {} ({})",
        library.version_text(),
        library.file,
        driver.version(),
        driver.file()
    );
    Ok(library)
}

/// Loads the library and finds its functions. In contrast to [`get`], this function also succeeds
/// without a CUDA driver, so that a check can use it.
///
/// # Errors
/// The errors of [`get`], except those of the driver.
pub fn open() -> Result<NcclLibrary> {
    // The driver is loaded first, so that the dependency of NCCL resolves to this driver. An error
    // is ignored here; `load` reports a missing driver.
    drop(driver::get_or_load());
    let object = match configured_path()? {
        Some((variable, path)) => Object::open(&path).map_err(|error| {
            let message = format!(
                "NCCL cannot be loaded from {path}, the value of {variable}: {}",
                error.message()
            );
            Error::new(error.kind(), message)
        })?,
        None => search()?,
    };
    NcclLibrary::from_object(&object)
}

fn search() -> Result<Object> {
    let mut errors = Vec::new();
    for name in DEFAULT_FILES {
        match Object::open(name) {
            Ok(object) => return Ok(object),
            Err(error) => errors.push(error.message().to_owned()),
        }
    }
    let message = format!(
        "NCCL is not in this process's search path (LD_LIBRARY_PATH, ld.so.conf): {}; install it, \
         or set {} to its path",
        errors.join("; "),
        config::NCCL_LIB.name
    );
    Err(Error::new(ErrorKind::NotFound, message))
}

impl NcclLibrary {
    fn from_object(object: &Object) -> Result<Self> {
        let file = object.symbol(NcclFunctions::REQUIRED[0]).and_then(file_of_address);
        let file = file.unwrap_or_else(|| "the loaded library (unknown path)".to_owned());
        let functions = NcclFunctions::find(object).map_err(|missing| {
            let message = format!(
                "{file} has no {missing:?}: NCCL 2.14 or newer is needed; 2.18 or newer is \
                 recommended"
            );
            Error::new(ErrorKind::Unsupported, message)
        })?;
        let mut library = Self { functions, version: 0, file };
        // SAFETY: `library.version` has space for a number.
        let code = unsafe { (functions.get_version)(&raw mut library.version) };
        library.check("ncclGetVersion", code, 0)?;
        Ok(library)
    }

    /// Returns the version number, for example 22703 for 2.27.3.
    pub fn version(&self) -> i32 {
        self.version
    }

    /// Returns the version as text, for example 2.27.3.
    pub fn version_text(&self) -> String {
        let v = self.version;
        format!("{}.{}.{}", v / 10_000, v / 100 % 100, v % 100)
    }

    /// Returns the file from which the library was loaded.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Returns the names of the optional functions that this version does not have. Without them,
    /// some features are not available.
    pub fn missing_functions(&self) -> Vec<&'static str> {
        let f = &self.functions;
        let has = [
            f.get_last_error.is_some(),
            f.create_premul_sum.is_some(),
            f.destroy_op.is_some(),
            f.mem_alloc.is_some(),
            f.mem_free.is_some(),
            f.comm_register.is_some(),
            f.comm_deregister.is_some(),
            f.window_register.is_some(),
            f.window_deregister.is_some(),
        ];
        let names = NcclFunctions::OPTIONAL.iter().map(|name| name.to_str().unwrap_or("?"));
        names.zip(has).filter(|(_, has)| !has).map(|(name, _)| name).collect()
    }

    /// Returns the version and the file, for error messages.
    pub(super) fn version_and_file(&self) -> String {
        format!("NCCL {}, {}", self.version_text(), self.file)
    }

    /// Converts the result code of a function to an error with NCCL's text. `comm` is the
    /// communicator of the call, or 0.
    pub(super) fn check(&self, function: &str, code: NcclResult, comm: CommHandle) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: the function takes a number and returns a static text.
        let text = single_line_text(unsafe { (self.functions.get_error_string)(code) });
        let detail = self.functions.get_last_error.map(|function| {
            // SAFETY: the function takes a communicator that is alive, or 0. The text is copied
            // before any other call.
            single_line_text(unsafe { function(comm) })
        });
        let detail = detail.filter(|detail| !detail.is_empty() && *detail != text);
        let detail = detail.map(|detail| format!(": {detail}")).unwrap_or_default();
        let message = format!("{function}: {text}{detail} ({})", self.version_and_file());
        let kind = match code {
            REMOTE_ERROR => ErrorKind::PeerFailed,
            SYSTEM_ERROR => ErrorKind::System,
            _ => ErrorKind::Backend,
        };
        Err(Error::new(kind, message))
    }
}

/// Returns a C string of NCCL as a text without line breaks.
fn single_line_text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the pointer is not NULL, so it is a terminated text.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
