//! What went wrong, until it is written into an outcome of the interface.

use crate::interface::{DIST_ERR_INTERNAL, dist_backend_outcome_t, dist_status_t};

/// An error: a status of dist.h, the rank to blame, and what happened.
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

    pub(crate) fn by(self, culprit: i32) -> Self {
        Self { culprit, ..self }
    }

    /// Writes it where the library looks for it.
    #[cold]
    pub(crate) fn tell(&self, outcome: *mut dist_backend_outcome_t) -> dist_status_t {
        // SAFETY: the library's, for the time of the call.
        if let Some(outcome) = unsafe { outcome.as_mut() } {
            outcome.culprit = self.culprit;
            write(outcome, &self.text);
        }
        self.status
    }
}

/// Writes a text into an outcome, as much of it as there is room for.
fn write(outcome: &mut dist_backend_outcome_t, text: &str) {
    if outcome.text.is_null() || outcome.text_cap == 0 {
        return;
    }
    let mut len = text.len().min(outcome.text_cap - 1);
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    // SAFETY: the room is text_cap bytes, which is more than is written.
    unsafe { outcome.text.copy_from_nonoverlapping(text.as_ptr().cast(), len) };
    // SAFETY: as above.
    unsafe { outcome.text.wrapping_add(len).write(0) };
}
