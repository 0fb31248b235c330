//! The library's host services for one group, as safe functions.

use crate::failure::{Failure, Result};
use crate::interface::{DIST_ERR_BACKEND, DIST_OK, dist_backend_host_t, dist_backend_setup_t};
use std::ffi::{CStr, CString, c_char, c_void};

/// The timeout in ms of optional requests to the store.
const STORE_TIMEOUT_MS: i64 = 1000;

/// The host services; valid as long as the group exists.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Host(*const dist_backend_host_t);

// SAFETY: any thread may call its functions until destroy has returned.
unsafe impl Send for Host {}
// SAFETY: as above.
unsafe impl Sync for Host {}

/// A sink that appends the passed bytes as one value.
unsafe extern "C" fn collect(sink_arg: *mut c_void, bytes: *const c_void, len_bytes: usize) {
    let mut value = Vec::new();
    if len_bytes > 0 {
        // SAFETY: the bytes of a sink are valid during the call.
        value.extend_from_slice(unsafe { std::slice::from_raw_parts(bytes.cast(), len_bytes) });
    }
    // SAFETY: the vector that `exchange` or `published` passed, which no other thread uses during
    // the call.
    unsafe { (*sink_arg.cast::<Vec<Vec<u8>>>()).push(value) };
}

/// Gathers bytes of all ranks, in rank order.
pub(crate) fn exchange(
    setup: &dist_backend_setup_t,
    phase: &CStr,
    bytes: &[u8],
) -> Result<Vec<Vec<u8>>> {
    let Some(exchange) = setup.exchange else {
        return Err(Failure::internal("the library passed no exchange function"));
    };
    let mut all: Vec<Vec<u8>> = Vec::new();
    // SAFETY: the library's function, during create, with arguments that outlive the call.
    let status = unsafe {
        exchange(
            setup.exchange_arg,
            phase.as_ptr(),
            bytes.as_ptr().cast(),
            bytes.len(),
            Some(collect),
            (&raw mut all).cast(),
        )
    };
    if status != DIST_OK {
        let phase_name = phase.to_string_lossy();
        return Err(Failure::new(
            status,
            format!("the ranks could not exchange data, phase {phase_name}"),
        ));
    }
    Ok(all)
}

/// Copies a text of the interface.
///
/// # Safety
/// `text` is a terminated string that is valid during the call, or NULL.
pub(crate) unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: as the caller promises.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

impl Host {
    pub(crate) fn new(setup: &dist_backend_setup_t) -> Result<Self> {
        match setup.host.is_null() {
            true => Err(Failure::internal("the library passed no services")),
            false => Ok(Self(setup.host)),
        }
    }

    fn table(&self) -> &dist_backend_host_t {
        // SAFETY: not NULL, and valid as long as the group exists.
        unsafe { &*self.0 }
    }

    /// Returns true if the group has failed on this rank.
    pub(crate) fn is_aborted(&self) -> bool {
        let table = self.table();
        // SAFETY: the library's function with its own context.
        table.is_aborted.is_some_and(|is_aborted| unsafe { is_aborted(table.context) } != 0)
    }

    /// Stores a value in the group's store. A failure is ignored, because no rank waits for the
    /// value.
    pub(crate) fn publish(&self, key: &CStr, value: &[u8]) {
        let table = self.table();
        let Some(set) = table.store_set else { return };
        // SAFETY: the library's function, which copies its arguments.
        unsafe {
            set(table.context, key.as_ptr(), value.as_ptr().cast(), value.len(), STORE_TIMEOUT_MS)
        };
    }

    /// Returns the value that another rank has stored, if there is one.
    pub(crate) fn published(&self, key: &CStr) -> Option<Vec<u8>> {
        let table = self.table();
        let (check, get) = (table.store_check?, table.store_get?);
        let mut present = 0;
        // SAFETY: the library's function, with space for its result.
        let status =
            unsafe { check(table.context, key.as_ptr(), &raw mut present, STORE_TIMEOUT_MS) };
        if status != DIST_OK || present == 0 {
            return None;
        }
        let mut all: Vec<Vec<u8>> = Vec::new();
        // SAFETY: the library's function, with a sink whose argument outlives the call.
        let status = unsafe {
            get(table.context, key.as_ptr(), Some(collect), (&raw mut all).cast(), STORE_TIMEOUT_MS)
        };
        all.pop().filter(|_| status == DIST_OK)
    }

    /// Writes a line to the library's log.
    pub(crate) fn log(&self, level: i32, text: &str) {
        let table = self.table();
        let (Some(log), Ok(text)) = (table.log, CString::new(text)) else { return };
        // SAFETY: the library's function, which copies its arguments.
        unsafe { log(table.context, level, text.as_ptr()) };
    }
}

/// Reads a number that only this plug-in writes.
pub(crate) fn read_i32(bytes: &[u8], offset: usize) -> Result<i32> {
    let word = bytes.get(offset..offset + 4).and_then(|word| word.try_into().ok());
    word.map(i32::from_le_bytes).ok_or_else(|| {
        Failure::new(DIST_ERR_BACKEND, "another rank uses another version of the MPI plug-in")
    })
}
