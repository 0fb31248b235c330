//! Loads the UCC library. If `DIST_UCC_LIB` names a file, that file is loaded, otherwise the file
//! that the dynamic loader finds.

use super::functions::{
    API_MAJOR, API_MINOR, ERR_NO_MEMORY, ERR_NOT_IMPLEMENTED, ERR_NOT_SUPPORTED, OK, UccFunctions,
    UccStatus,
};
use crate::base::config;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::log::LogLevel;
use crate::sys::library::{Library as Object, file_of_address};
use std::ffi::{CStr, c_uint};
use std::sync::OnceLock;

/// The file name for which the loader searches if the variable is not set.
const DEFAULT_FILE: &str = "libucc.so.1";

/// The loaded UCC library.
#[derive(Debug)]
pub struct UccLibrary {
    pub(super) functions: UccFunctions,
    version: [c_uint; 3],
    file: String,
}

static LIBRARY: OnceLock<Result<UccLibrary>> = OnceLock::new();

/// Returns the UCC library of this process. The first call loads it.
///
/// # Errors
/// `NotFound` if there is no such file; `Unsupported` for a version that is too old; `System`.
pub fn get() -> Result<&'static UccLibrary> {
    LIBRARY.get_or_init(load).as_ref().map_err(Clone::clone)
}

fn load() -> Result<UccLibrary> {
    let object = match config::read_text(config::UCC_LIB)? {
        Some(path) => Object::open(&path).map_err(|error| {
            let variable = config::UCC_LIB.name;
            let message = format!(
                "UCC cannot be loaded from {path}, the value of {variable}: {}",
                error.message()
            );
            Error::new(error.kind(), message)
        })?,
        None => Object::open(DEFAULT_FILE).map_err(|error| {
            let message = format!(
                "UCC is not in this process's search path (LD_LIBRARY_PATH, ld.so.conf): {}; \
                 install it, or set {} to its path",
                error.message(),
                config::UCC_LIB.name
            );
            Error::new(ErrorKind::NotFound, message)
        })?,
    };
    let library = UccLibrary::from_object(&object)?;
    crate::log!(LogLevel::Info, "loaded UCC {} ({})", library.version_text(), library.file);
    Ok(library)
}

impl UccLibrary {
    fn from_object(object: &Object) -> Result<Self> {
        let file = object.symbol(UccFunctions::REQUIRED[0]).and_then(file_of_address);
        let file = file.unwrap_or_else(|| "the loaded library (unknown path)".to_owned());
        let too_old = |what: String| {
            let message = format!("{file} {what}: UCC {API_MAJOR}.{API_MINOR} or newer is needed");
            Error::new(ErrorKind::Unsupported, message)
        };
        let functions =
            UccFunctions::find(object).map_err(|missing| too_old(format!("has no {missing:?}")))?;
        let mut version: [c_uint; 3] = [0; 3];
        let [major, minor, release] = &mut version;
        // SAFETY: the function writes one number to each address.
        unsafe { (functions.get_version)(&raw mut *major, &raw mut *minor, &raw mut *release) };
        if version[0] != API_MAJOR || version[1] < API_MINOR {
            return Err(too_old(format!("is version {}.{}", version[0], version[1])));
        }
        Ok(Self { functions, version, file })
    }

    /// Returns the version as text, for example 1.2.0.
    pub fn version_text(&self) -> String {
        let [major, minor, release] = self.version;
        format!("{major}.{minor}.{release}")
    }

    /// Returns the file from which the library was loaded.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Converts the status of a function to an error with UCC's text.
    pub(super) fn check(&self, function: &str, status: UccStatus) -> Result<()> {
        if status == OK {
            return Ok(());
        }
        let kind = match status {
            ERR_NOT_SUPPORTED | ERR_NOT_IMPLEMENTED => ErrorKind::Unsupported,
            ERR_NO_MEMORY => ErrorKind::OutOfMemory,
            _ => ErrorKind::Backend,
        };
        let text = self.status_text(status);
        let message = format!("{function}: {text} (UCC {}, {})", self.version_text(), self.file);
        Err(Error::new(kind, message))
    }

    fn status_text(&self, status: UccStatus) -> String {
        // SAFETY: the function takes a number and returns a static text, or NULL.
        let text = unsafe { (self.functions.status_string)(status) };
        if text.is_null() {
            return format!("status {status}");
        }
        // SAFETY: the pointer is not NULL, so it is a terminated text.
        let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}
