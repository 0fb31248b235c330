//! What the library does for this part of a group, behind safe functions.

use crate::failure::{Failure, Result};
use crate::interface::{DIST_ERR_BACKEND, DIST_OK, dist_backend_host_t, dist_backend_setup_t};
use std::ffi::{CStr, CString, c_char, c_void};

/// How long the store may take for what is a courtesy.
const SOON_MS: i64 = 1000;

/// Valid for as long as the part is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Host(*const dist_backend_host_t);

// SAFETY: its functions may be called from any thread, until destroy has returned.
unsafe impl Send for Host {}
// SAFETY: as above.
unsafe impl Sync for Host {}

/// Collects what a sink is given.
unsafe extern "C" fn collect(sink_arg: *mut c_void, bytes: *const c_void, len_bytes: usize) {
    let mut value = Vec::new();
    if len_bytes > 0 {
        // SAFETY: the bytes of a sink, valid during the call.
        value.extend_from_slice(unsafe { std::slice::from_raw_parts(bytes.cast(), len_bytes) });
    }
    // SAFETY: what `exchange` and `get` have given with it, which nobody else uses meanwhile.
    unsafe { (*sink_arg.cast::<Vec<Vec<u8>>>()).push(value) };
}

/// Tells all ranks some bytes, and gives those of all in the order of ranks.
pub(crate) fn exchange(
    setup: &dist_backend_setup_t,
    phase: &CStr,
    bytes: &[u8],
) -> Result<Vec<Vec<u8>>> {
    let Some(exchange) = setup.exchange else {
        return Err(Failure::internal("the library gives no exchange"));
    };
    let mut all: Vec<Vec<u8>> = Vec::new();
    // SAFETY: the library's function, inside create, with what outlives the call.
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
        let what = phase.to_string_lossy();
        return Err(Failure::new(status, format!("the ranks could not tell each other: {what}")));
    }
    Ok(all)
}

/// A text of the interface.
///
/// # Safety
/// A terminated string that stays for the time of the call, or NULL.
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
            true => Err(Failure::internal("the library offers no services")),
            false => Ok(Self(setup.host)),
        }
    }

    fn table(&self) -> &dist_backend_host_t {
        // SAFETY: not NULL, and valid for as long as the part is.
        unsafe { &*self.0 }
    }

    /// Whether the group has failed on this rank.
    pub(crate) fn is_aborted(&self) -> bool {
        let table = self.table();
        // SAFETY: the library's function with its own context.
        table.is_aborted.is_some_and(|is_aborted| unsafe { is_aborted(table.context) } != 0)
    }

    /// Leaves a value in the group's store; that it cannot is no error, since nobody waits for it.
    pub(crate) fn leave(&self, key: &CStr, value: &[u8]) {
        let table = self.table();
        let Some(set) = table.store_set else { return };
        // SAFETY: the library's function, which copies what it is given.
        unsafe { set(table.context, key.as_ptr(), value.as_ptr().cast(), value.len(), SOON_MS) };
    }

    /// The value that another rank has left, if there is one.
    pub(crate) fn left(&self, key: &CStr) -> Option<Vec<u8>> {
        let table = self.table();
        let (check, get) = (table.store_check?, table.store_get?);
        let mut present = 0;
        // SAFETY: the library's function, with room for its result.
        let status = unsafe { check(table.context, key.as_ptr(), &raw mut present, SOON_MS) };
        if status != DIST_OK || present == 0 {
            return None;
        }
        let mut all: Vec<Vec<u8>> = Vec::new();
        // SAFETY: the library's function, with a sink whose argument outlives the call.
        let status = unsafe {
            get(table.context, key.as_ptr(), Some(collect), (&raw mut all).cast(), SOON_MS)
        };
        all.pop().filter(|_| status == DIST_OK)
    }

    /// Writes a line to the library's log.
    pub(crate) fn log(&self, level: i32, text: &str) {
        let table = self.table();
        let (Some(log), Ok(text)) = (table.log, CString::new(text)) else { return };
        // SAFETY: the library's function, which copies what it is given.
        unsafe { log(table.context, level, text.as_ptr()) };
    }
}

/// For values that only this crate writes.
pub(crate) fn number(bytes: &[u8], place: usize) -> Result<i32> {
    let word = bytes.get(place..place + 4).and_then(|word| word.try_into().ok());
    word.map(i32::from_le_bytes).ok_or_else(|| {
        Failure::new(DIST_ERR_BACKEND, "another rank has another version of the MPI plug-in")
    })
}
