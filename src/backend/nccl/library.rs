//! Which libnccl is in use: the one that a variable names, else the one that the loader finds.

use super::functions::{CommHandle, NcclFunctions, NcclResult, REMOTE_ERROR, SYSTEM_ERROR};
use crate::base::config;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::log::LogLevel;
use crate::device::driver;
use crate::sys::library::{Library as Object, file_of_address};
use std::ffi::{CStr, c_char};
use std::sync::OnceLock;

/// What is looked for where no variable says which.
const DEFAULT_FILES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// The variables that may name it, in turn: ours, and the one that users of vLLM know.
const VARIABLES: [config::EnvVariable; 2] = [config::NCCL_LIB, config::VLLM_NCCL_SO_PATH];

/// NCCL, as it was found.
#[derive(Debug)]
pub struct NcclLibrary {
    pub(super) functions: NcclFunctions,
    version: i32,
    file: String,
}

static LIBRARY: OnceLock<Result<NcclLibrary>> = OnceLock::new();

/// The library of this process, loaded by the first who asks, after the CUDA driver.
///
/// # Errors
/// `NotFound` with what was looked for and where, `Unsupported` for one that is too old, `Backend`;
/// those of the driver.
pub fn get() -> Result<&'static NcclLibrary> {
    LIBRARY.get_or_init(load).as_ref().map_err(Clone::clone)
}

/// The first variable that is set, with its path.
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
    // First: NCCL takes what is there.
    let driver =
        driver::get_or_load().map_err(|error| error.context("NCCL needs the CUDA driver"))?;
    crate::log!(
        LogLevel::Info,
        "NCCL {} ({}), CUDA driver for {} ({})",
        library.version_text(),
        library.file,
        driver.version(),
        driver.file()
    );
    Ok(library)
}

/// Finds the library and its functions, without a driver; for checks.
///
/// # Errors
/// As [`get_or_load`].
pub fn open() -> Result<NcclLibrary> {
    // What it needs itself is found among what is loaded; without a driver the caller is told
    // later.
    drop(driver::get_or_load());
    let object = match configured_path()? {
        Some((variable, path)) => Object::open(&path).map_err(|error| {
            let message = format!("NCCL, which {variable} says is {path}: {}", error.message());
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
        "there is no NCCL in this process's search path (LD_LIBRARY_PATH, ld.so.conf): {}; install it, or name its file in {}",
        errors.join("; "),
        config::NCCL_LIB.name
    );
    Err(Error::new(ErrorKind::NotFound, message))
}

impl NcclLibrary {
    fn from_object(object: &Object) -> Result<Self> {
        let file = object.symbol(NcclFunctions::REQUIRED[0]).and_then(file_of_address);
        let file = file.unwrap_or_else(|| "a library that is no NCCL".to_owned());
        let functions = NcclFunctions::find(object).map_err(|missing| {
            let message =
                format!("{file} has no {missing:?}: NCCL 2.14 or newer is needed, better 2.18");
            Error::new(ErrorKind::Unsupported, message)
        })?;
        let mut library = Self { functions, version: 0, file };
        // SAFETY: there is room for a number.
        let code = unsafe { (functions.get_version)(&raw mut library.version) };
        library.check("ncclGetVersion", code, 0)?;
        Ok(library)
    }

    /// Its number, for instance 22703 for 2.27.3.
    pub fn version(&self) -> i32 {
        self.version
    }

    /// Its version as people say it.
    pub fn version_text(&self) -> String {
        let v = self.version;
        format!("{}.{}.{}", v / 10_000, v / 100 % 100, v % 100)
    }

    /// The file that it was loaded from.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The functions that this version lacks, and without which something cannot be done.
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

    /// Which NCCL an error is of.
    pub(super) fn version_and_file(&self) -> String {
        format!("NCCL {}, {}", self.version_text(), self.file)
    }

    /// An error of NCCL's, in its words.
    pub(super) fn check(&self, function: &str, code: NcclResult, comm: CommHandle) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: takes a number, and returns a text that stays.
        let words = single_line_text(unsafe { (self.functions.get_error_string)(code) });
        let more = self.functions.get_last_error.map(|function| {
            // SAFETY: takes a communicator that lives, or none; the text is copied at once.
            single_line_text(unsafe { function(comm) })
        });
        let more = more.filter(|more| !more.is_empty() && *more != words);
        let more = more.map(|more| format!(": {more}")).unwrap_or_default();
        let message = format!("{function}: {words}{more} ({})", self.version_and_file());
        let kind = match code {
            REMOTE_ERROR => ErrorKind::PeerFailed,
            SYSTEM_ERROR => ErrorKind::System,
            _ => ErrorKind::Backend,
        };
        Err(Error::new(kind, message))
    }
}

/// A text of NCCL's, on one line.
fn single_line_text(words: *const c_char) -> String {
    if words.is_null() {
        return String::new();
    }
    // SAFETY: not NULL, so a terminated text.
    let words = unsafe { CStr::from_ptr(words) }.to_string_lossy();
    words.split_whitespace().collect::<Vec<_>>().join(" ")
}
