//! Errors of the plug-in, and their conversion to an outcome of the interface.

use crate::interface::{DIST_ERR_INTERNAL, dist_backend_outcome_t, dist_status_t};

/// An error: a status of dist.h, the culprit, and the description.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) status: dist_status_t,
    pub(crate) culprit: i32,
    pub(crate) text: String,
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub(crate) fn new(status: dist_status_t, text: impl Into<String>) -> Self {
        Self { status, culprit: -1, text: text.into() }
    }

    pub(crate) fn internal(text: impl Into<String>) -> Self {
        Self::new(DIST_ERR_INTERNAL, text)
    }

    pub(crate) fn with_culprit(self, culprit: i32) -> Self {
        Self { culprit, ..self }
    }

    /// Writes the error into the library's outcome, and returns the status.
    #[cold]
    pub(crate) fn write_to(&self, outcome: *mut dist_backend_outcome_t) -> dist_status_t {
        // SAFETY: the library's struct, valid during the call.
        if let Some(outcome) = unsafe { outcome.as_mut() } {
            outcome.culprit = self.culprit;
            write(outcome, &self.text);
        }
        self.status
    }
}

/// Writes a text into an outcome, truncated to its buffer.
fn write(outcome: &mut dist_backend_outcome_t, text: &str) {
    if outcome.text.is_null() || outcome.text_cap == 0 {
        return;
    }
    let mut len = text.len().min(outcome.text_cap - 1);
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    // SAFETY: the buffer has text_cap bytes, and this writes fewer.
    unsafe { outcome.text.copy_from_nonoverlapping(text.as_ptr().cast(), len) };
    // SAFETY: the buffer has text_cap bytes, and `len` is less.
    unsafe { outcome.text.wrapping_add(len).write(0) };
}
