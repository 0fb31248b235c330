//! The calling thread's last message, kept as a C string, and where in the program it comes from.

use crate::base::backtrace;
use crate::process::witness;
use std::backtrace::Backtrace;
use std::cell::{OnceCell, RefCell};
use std::ffi::{CStr, CString, c_char};
use std::sync::Arc;

/// What is kept of an error.
#[derive(Default)]
struct Last {
    message: CString,
    /// Where the failing call was made.
    at: Option<Backtrace>,
    /// Where the operation was issued that it was about, if that was another call.
    issued: Option<Arc<Backtrace>>,
    /// Both in words, once somebody has asked.
    text: OnceCell<CString>,
}

thread_local! {
    static LAST: RefCell<Last> = RefCell::default();
    /// Of the error that comes next.
    static ISSUED: RefCell<Option<Arc<Backtrace>>> = const { RefCell::new(None) };
}

const EMPTY: &CStr = c"";

/// Replaces the message.
pub(super) fn set(message: &str) {
    witness::tell(message);
    let message = text(message);
    let issued = ISSUED.try_with(RefCell::take).ok().flatten();
    let last = Last { message, at: backtrace::capture(), issued, text: OnceCell::new() };
    // A thread that is being torn down has no message any more.
    drop(LAST.try_with(|kept| kept.replace(last)));
}

/// Says where the operation was issued whose error this call is about to return.
pub(super) fn issued_at(place: Option<Arc<Backtrace>>) {
    drop(ISSUED.try_with(|issued| issued.replace(place)));
}

/// The message as a C string: valid until the next [`set`] on this thread.
pub(super) fn as_ptr() -> *const c_char {
    LAST.try_with(|last| last.borrow().message.as_ptr()).unwrap_or(EMPTY.as_ptr())
}

/// The message.
pub(super) fn get() -> String {
    LAST.try_with(|last| last.borrow().message.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Where the error comes from, in words; "" where nobody wanted to know. Valid as long as the message.
pub(super) fn backtrace_as_ptr() -> *const c_char {
    LAST.try_with(|last| last.borrow().describe().as_ptr()).unwrap_or(EMPTY.as_ptr())
}

fn text(text: &str) -> CString {
    CString::new(text.replace('\0', "?")).unwrap_or_default()
}

impl Last {
    fn describe(&self) -> &CStr {
        self.text.get_or_init(|| {
            let at = self.at.as_ref().map(backtrace::render).unwrap_or_default();
            let issued = self.issued.as_ref().map(|issued| backtrace::render(issued));
            let issued = issued.map(|issued| format!("the operation was issued at:\n{issued}"));
            text(&(at + &issued.unwrap_or_default()))
        })
    }
}
