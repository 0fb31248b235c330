//! The last error of each thread: its message as a C string, and its back-traces.
//!
//! Each thread keeps its two most recent errors in alternating buffers. A pointer to a message
//! therefore stays valid if one more call fails, for example a call that cleans up or prints the
//! message.

use crate::base::backtrace;
use crate::process::child_result;
use std::backtrace::Backtrace;
use std::cell::{OnceCell, RefCell};
use std::ffi::{CStr, CString, c_char};
use std::sync::Arc;

/// An error of a thread.
#[derive(Default)]
struct LastError {
    message: CString,
    /// The back-trace of the failing call.
    raised_at: Option<Backtrace>,
    /// The back-trace of the call that issued the operation, if this was not the failing call.
    issued_at: Option<Arc<Backtrace>>,
    /// Both back-traces as text. Empty until a caller asks for the text.
    rendered_backtraces: OnceCell<CString>,
}

/// The last two errors of a thread.
#[derive(Default)]
struct ErrorHistory {
    recent: [LastError; 2],
    /// The index of the newer error.
    newest: usize,
}

impl ErrorHistory {
    fn push(&mut self, last: LastError) {
        self.newest = 1 - self.newest;
        self.recent[self.newest] = last;
    }

    fn last(&self) -> &LastError {
        &self.recent[self.newest]
    }
}

thread_local! {
    static ERRORS: RefCell<ErrorHistory> = RefCell::default();
    /// The issue back-trace of the next error of this thread: the place where the operation was
    /// issued.
    static ISSUE_BACKTRACE: RefCell<Option<Arc<Backtrace>>> = const { RefCell::new(None) };
}

const EMPTY: &CStr = c"";

/// Stores the message as the newest error of this thread, together with a back-trace.
pub(super) fn set(message: &str) {
    child_result::record_message(message);
    let message = to_c_string(message);
    let issued = ISSUE_BACKTRACE.try_with(RefCell::take).ok().flatten();
    let last = LastError {
        message,
        raised_at: backtrace::capture(),
        issued_at: issued,
        rendered_backtraces: OnceCell::new(),
    };
    // While the thread ends, its storage may be gone; the message is then lost.
    ERRORS.try_with(|errors| errors.borrow_mut().push(last)).unwrap_or_default();
}

/// Records where the failed operation was issued. The next [`set`] on this thread stores this
/// back-trace with the error.
pub(super) fn set_issue_backtrace(backtrace: Option<Arc<Backtrace>>) {
    drop(ISSUE_BACKTRACE.try_with(|issued| issued.replace(backtrace)));
}

/// Returns the message of the newest error as a C string, valid until the second next [`set`] on
/// this thread.
pub(super) fn as_ptr() -> *const c_char {
    ERRORS.try_with(|errors| errors.borrow().last().message.as_ptr()).unwrap_or(EMPTY.as_ptr())
}

/// Returns the message of the newest error.
pub(super) fn get() -> String {
    let text = |errors: &RefCell<ErrorHistory>| {
        errors.borrow().last().message.to_string_lossy().into_owned()
    };
    ERRORS.try_with(text).unwrap_or_default()
}

/// Returns the back-traces of the newest error as text; "" if none was recorded. The pointer is
/// valid until the second next [`set`] on this thread.
pub(super) fn backtrace_as_ptr() -> *const c_char {
    ERRORS
        .try_with(|errors| errors.borrow().last().render_backtraces().as_ptr())
        .unwrap_or(EMPTY.as_ptr())
}

fn to_c_string(text: &str) -> CString {
    CString::new(text.replace('\0', "?")).unwrap_or_default()
}

impl LastError {
    fn render_backtraces(&self) -> &CStr {
        self.rendered_backtraces.get_or_init(|| {
            let at = self.raised_at.as_ref().map(backtrace::render).unwrap_or_default();
            let issued = self.issued_at.as_ref().map(|issued| backtrace::render(issued));
            let issued = issued.map(|issued| format!("the operation was issued at:\n{issued}"));
            to_c_string(&(at + &issued.unwrap_or_default()))
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
        // SAFETY: both messages are valid until the third error.
        let texts = [first, second].map(|text| unsafe { CStr::from_ptr(text) });
        assert_eq!(texts, [c"first", c"second"]);
        set("third");
        // SAFETY: the second message is valid until the fourth error.
        assert_eq!(unsafe { CStr::from_ptr(second) }, c"second");
        assert_eq!(get(), "third");
    }
}
