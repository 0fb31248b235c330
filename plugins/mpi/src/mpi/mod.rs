//! The plug-in's interface to MPI: calls with error conversion, handles that may move between
//! threads, and constants that mpi-sys lacks.

pub(crate) mod large_count;

use crate::failure::{Failure, Result};
use crate::family::Family;
use crate::interface::{DIST_ERR_BACKEND, DIST_ERR_MISMATCH};
pub(crate) use mpi_sys as sys;
use std::ffi::{c_char, c_int, c_void};

/// Calls a function of MPI and converts its return code to a result: `mpi!(MPI_Test(request, flag,
/// status))`.
///
/// The plug-in makes all calls of MPI with this macro, except error queries, and they are sound for
/// the same reasons:
///
/// - MPI is initialised and not finalised, and this thread may call it (the caller holds a
///   [`crate::process::MpiAccess`]).
/// - Handles are from MPI and have not been freed.
/// - Addresses of handles, flags and statuses are those of variables that outlive the call.
/// - Buffers have the length of count and type, and are lent until the request has ended.
macro_rules! mpi {
    ($function:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: see the macro.
        let code = unsafe { $crate::mpi::sys::$function($($argument),*) };
        $crate::mpi::check(code, stringify!($function))
    }};
}
pub(crate) use mpi;

/// Reads a value that mpi-sys or constants.c exports.
macro_rules! constant {
    ($name:ident) => {{
        #[allow(
            unused_unsafe,
            reason = "in the arguments of `mpi!`, the unsafe block of that macro surrounds it"
        )]
        // SAFETY: only the loader writes it.
        unsafe {
            $crate::mpi::sys::$name
        }
    }};
}
pub(crate) use constant;

/// A handle of MPI: a number or an address that the plug-in only passes back to MPI.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Handle<T>(pub(crate) T);

// SAFETY: the object behind a handle belongs to MPI. Either one thread at a time calls MPI, or MPI
// allows several.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Handle<T> {}

#[allow(non_upper_case_globals, reason = "the names of the C symbols")]
mod constants {
    use std::ffi::{c_int, c_void};

    #[repr(transparent)]
    pub(super) struct Address(pub(super) *mut c_void);

    // SAFETY: the address is a marker and does not point to memory.
    unsafe impl Sync for Address {}

    unsafe extern "C" {
        pub(super) static dist_mpi_in_place: Address;
        pub(super) static dist_mpi_family: c_int;
        pub(super) fn dist_mpi_supports_cuda() -> c_int;
    }
}

/// MPI_IN_PLACE.
pub(crate) fn in_place() -> *mut c_void {
    // SAFETY: only the loader writes it.
    unsafe { constants::dist_mpi_in_place.0 }
}

/// Returns the family for which the plug-in was built, by the number in constants.c.
pub(crate) fn own_family() -> Family {
    // SAFETY: only the loader writes it.
    let number = unsafe { constants::dist_mpi_family };
    if number == 1 { Family::OpenMpi } else { Family::Mpich }
}

/// Returns true if MPI reports support for CUDA device memory; MPI must be initialised.
pub(crate) fn supports_cuda() -> bool {
    // SAFETY: calls a query of MPI, which is initialised.
    unsafe { constants::dist_mpi_supports_cuda() != 0 }
}

/// MPI_REQUEST_NULL.
pub(crate) fn no_request() -> sys::MPI_Request {
    constant!(RSMPI_REQUEST_NULL)
}

/// Returns a zeroed status for MPI to fill in.
pub(crate) fn status() -> sys::MPI_Status {
    // SAFETY: a struct of numbers and addresses, for which zero is a valid value.
    unsafe { std::mem::zeroed() }
}

/// Returns the number of bytes in a status.
pub(crate) fn bytes_of(status: &sys::MPI_Status) -> Result<usize> {
    let mut bytes: sys::MPI_Count = -1;
    mpi!(MPI_Get_elements_x(status, constant!(RSMPI_UINT8_T), &raw mut bytes))?;
    usize::try_from(bytes)
        .map_err(|_| Failure::new(DIST_ERR_BACKEND, "MPI does not report the length of a message"))
}

/// Converts the return code of an MPI function.
#[inline]
pub(crate) fn check(code: c_int, function: &str) -> Result<()> {
    if code == sys::MPI_SUCCESS.cast_signed() { Ok(()) } else { Err(mpi_error(code, function)) }
}

#[cold]
fn mpi_error(code: c_int, function: &str) -> Failure {
    let mut class = 0;
    // SAFETY: an error code from MPI, and a number that outlives the call.
    unsafe { sys::MPI_Error_class(code, &raw mut class) };
    let status = match class.cast_unsigned() {
        sys::MPI_ERR_TRUNCATE => DIST_ERR_MISMATCH,
        _ => DIST_ERR_BACKEND,
    };
    let mut text: [c_char; sys::MPI_MAX_ERROR_STRING as usize + 1] =
        [0; sys::MPI_MAX_ERROR_STRING as usize + 1];
    let mut len = 0;
    // SAFETY: the buffer has space for the longest text.
    unsafe { sys::MPI_Error_string(code, (&raw mut text).cast(), &raw mut len) };
    Failure::new(status, format!("{function}: {}", to_text(&text)))
}

/// Converts a text that ends at a zero byte or at the end of its buffer.
pub(crate) fn to_text(text: &[c_char]) -> String {
    let bytes: Vec<u8> =
        text.iter().take_while(|&&byte| byte != 0).map(|byte| byte.cast_unsigned()).collect();
    String::from_utf8_lossy(&bytes).trim_end().replace('\n', " ")
}

/// Returns the version text of the MPI in this process, also before its initialisation.
pub(crate) fn library_version() -> Result<String> {
    const TEXT_BYTES: usize = sys::MPI_MAX_LIBRARY_VERSION_STRING as usize + 1;
    // An MPI other than the one of the build may have a longer text.
    let mut text: [c_char; TEXT_BYTES + 8192] = [0; TEXT_BYTES + 8192];
    let mut len = 0;
    mpi!(MPI_Get_library_version((&raw mut text).cast(), &raw mut len))?;
    Ok(to_text(&text))
}
