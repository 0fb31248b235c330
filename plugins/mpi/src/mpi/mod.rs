//! MPI as this crate sees it: a call and what became of it, handles that may travel between
//! threads, and what mpi-sys has no name for.

pub(crate) mod lot;

use crate::failure::{Failure, Result};
use crate::family::Family;
use crate::interface::{DIST_ERR_BACKEND, DIST_ERR_MISMATCH};
pub(crate) use mpi_sys as sys;
use std::ffi::{c_char, c_int, c_void};

/// Calls a function of MPI, and makes an error of what it returns: `mpi!(MPI_Test(request, flag,
/// status))`.
///
/// All calls of MPI are made here, and what makes them sound is the same for all of them: MPI is
/// initialised and not yet finalised, and may be called by this thread (whoever calls holds a
/// [`crate::process::Entered`]); handles were given by MPI and have not been freed; addresses of
/// handles, flags and statuses are those of variables that outlive the call; buffers are as long as
/// count and type say, and are lent until the request has ended.
macro_rules! mpi {
    ($function:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: see the macro.
        let code = unsafe { $crate::mpi::sys::$function($($argument),*) };
        $crate::mpi::check(code, stringify!($function))
    }};
}
pub(crate) use mpi;

/// A value that mpi-sys or constants.c exports.
macro_rules! constant {
    ($name:ident) => {{
        #[allow(unused_unsafe, reason = "among the arguments of `mpi!`, whose block is around it")]
        // SAFETY: written by the loader only.
        unsafe {
            $crate::mpi::sys::$name
        }
    }};
}
pub(crate) use constant;

/// For handles of MPI, which are numbers or addresses that this crate hands back to MPI only.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Handle<T>(pub(crate) T);

// SAFETY: what a handle stands for is MPI's, which is called by one thread at a time, or allows
// several.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Handle<T> {}

#[allow(non_upper_case_globals, reason = "as in C")]
mod constants {
    use std::ffi::{c_int, c_void};

    #[repr(transparent)]
    pub(super) struct Address(pub(super) *mut c_void);

    // SAFETY: an address that is no memory's.
    unsafe impl Sync for Address {}

    unsafe extern "C" {
        pub(super) static dist_mpi_in_place: Address;
        pub(super) static dist_mpi_family: c_int;
        pub(super) fn dist_mpi_takes_cuda() -> c_int;
    }
}

/// MPI_IN_PLACE.
pub(crate) fn in_place() -> *mut c_void {
    // SAFETY: written by the loader only.
    unsafe { constants::dist_mpi_in_place.0 }
}

/// The MPI that this was built for, by the number in constants.c.
pub(crate) fn own_family() -> Family {
    // SAFETY: written by the loader only.
    let number = unsafe { constants::dist_mpi_family };
    if number == 1 { Family::OpenMpi } else { Family::Mpich }
}

/// Whether it says that it takes the memory of CUDA devices; it is initialised.
pub(crate) fn takes_cuda() -> bool {
    // SAFETY: asks MPI, which is there.
    unsafe { constants::dist_mpi_takes_cuda() != 0 }
}

/// MPI_REQUEST_NULL.
pub(crate) fn no_request() -> sys::MPI_Request {
    constant!(RSMPI_REQUEST_NULL)
}

/// A status that MPI fills in.
pub(crate) fn status() -> sys::MPI_Status {
    // SAFETY: a struct of numbers and addresses, for which zero will do.
    unsafe { std::mem::zeroed() }
}

/// How many bytes a status tells of.
pub(crate) fn bytes_of(status: &sys::MPI_Status) -> Result<usize> {
    let mut bytes: sys::MPI_Count = -1;
    mpi!(MPI_Get_elements_x(status, constant!(RSMPI_UINT8_T), &raw mut bytes))?;
    usize::try_from(bytes)
        .map_err(|_| Failure::new(DIST_ERR_BACKEND, "MPI does not say how long a message is"))
}

/// What a function of MPI has returned.
#[inline]
pub(crate) fn check(code: c_int, function: &str) -> Result<()> {
    if code == sys::MPI_SUCCESS.cast_signed() { Ok(()) } else { Err(failed(code, function)) }
}

#[cold]
fn failed(code: c_int, function: &str) -> Failure {
    let mut class = 0;
    // SAFETY: an error code that MPI has given, and a number that outlives the call.
    unsafe { sys::MPI_Error_class(code, &raw mut class) };
    let status = match class.cast_unsigned() {
        sys::MPI_ERR_TRUNCATE => DIST_ERR_MISMATCH,
        _ => DIST_ERR_BACKEND,
    };
    let mut text: [c_char; sys::MPI_MAX_ERROR_STRING as usize + 1] =
        [0; sys::MPI_MAX_ERROR_STRING as usize + 1];
    let mut len = 0;
    // SAFETY: the longest text there is fits.
    unsafe { sys::MPI_Error_string(code, (&raw mut text).cast(), &raw mut len) };
    Failure::new(status, format!("{function}: {}", words(&text)))
}

/// A text that ends with a zero, or with the room for it.
pub(crate) fn words(text: &[c_char]) -> String {
    let bytes: Vec<u8> =
        text.iter().take_while(|&&byte| byte != 0).map(|byte| byte.cast_unsigned()).collect();
    String::from_utf8_lossy(&bytes).trim_end().replace('\n', " ")
}

/// What the MPI in this process says that it is, also before it has been initialised.
pub(crate) fn library_version() -> Result<String> {
    const ROOM: usize = sys::MPI_MAX_LIBRARY_VERSION_STRING as usize + 1;
    // Another MPI than the one that this was built for may have more to say.
    let mut text: [c_char; ROOM + 8192] = [0; ROOM + 8192];
    let mut len = 0;
    mpi!(MPI_Get_library_version((&raw mut text).cast(), &raw mut len))?;
    Ok(words(&text))
}
