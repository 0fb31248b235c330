//! The calling thread's last message, kept as a C string.

use crate::process::witness;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Replaces the message.
pub(super) fn set(message: &str) {
    witness::tell(message);
    let text = CString::new(message.replace('\0', "?")).unwrap_or_default();
    // A thread that is being torn down has no message any more.
    drop(LAST.try_with(|last| last.replace(text)));
}

/// The message as a C string: valid until the next [`set`] on this thread.
pub(super) fn as_ptr() -> *const c_char {
    const EMPTY: &CStr = c"";
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(EMPTY.as_ptr())
}

/// The message.
pub(super) fn get() -> String {
    LAST.try_with(|last| last.borrow().to_string_lossy().into_owned()).unwrap_or_default()
}
