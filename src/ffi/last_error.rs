//! The calling thread's last message, kept as a C string, and where in the program it comes from.
//!
//! Two errors are kept, in buffers used alternately, so that a pointer to a message outlives the
//! next failing call: that of a clean-up, or of the function that prints the message.

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

/// The last two errors of a thread.
#[derive(Default)]
struct Errors {
    kept: [Last; 2],
    /// Which of them is the last one.
    newest: usize,
}

impl Errors {
    fn push(&mut self, last: Last) {
        self.newest = 1 - self.newest;
        self.kept[self.newest] = last;
    }

    fn last(&self) -> &Last {
        &self.kept[self.newest]
    }
}

thread_local! {
    static ERRORS: RefCell<Errors> = RefCell::default();
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
    ERRORS.try_with(|errors| errors.borrow_mut().push(last)).unwrap_or_default();
}

/// Says where the operation was issued whose error this call is about to return.
pub(super) fn issued_at(place: Option<Arc<Backtrace>>) {
    drop(ISSUED.try_with(|issued| issued.replace(place)));
}

/// The message as a C string: valid until the second next [`set`] on this thread.
pub(super) fn as_ptr() -> *const c_char {
    ERRORS.try_with(|errors| errors.borrow().last().message.as_ptr()).unwrap_or(EMPTY.as_ptr())
}

/// The message.
pub(super) fn get() -> String {
    let text =
        |errors: &RefCell<Errors>| errors.borrow().last().message.to_string_lossy().into_owned();
    ERRORS.try_with(text).unwrap_or_default()
}

/// Where the error comes from, in words; "" where nobody wanted to know. Valid as long as the
/// message.
pub(super) fn backtrace_as_ptr() -> *const c_char {
    ERRORS.try_with(|errors| errors.borrow().last().describe().as_ptr()).unwrap_or(EMPTY.as_ptr())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_outlives_the_next_error() {
        set("first");
        let first = as_ptr();
        set("second");
        let second = as_ptr();
        // SAFETY: valid until the third error.
        let texts = [first, second].map(|text| unsafe { CStr::from_ptr(text) });
        assert_eq!(texts, [c"first", c"second"]);
        set("third");
        // SAFETY: as above, until the fourth.
        assert_eq!(unsafe { CStr::from_ptr(second) }, c"second");
        assert_eq!(get(), "third");
    }
}
