//! Notices threads that are blocked: threads whose call waits for longer than the configured time
//! (`base::debug`). The module that examines blocked calls registers a handler.
//!
//! This module does not depend on what the thread waits for.

use crate::base::debug;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The functions that are called on waiting threads.
#[derive(Clone, Copy, Debug)]
struct WaitHandlers {
    on_blocked: fn(),
    on_poll: fn(),
}

static HANDLERS: OnceLock<WaitHandlers> = OnceLock::new();

/// Sets the function that each blocked thread calls once per wait, and the function that
/// [`record_poll`] calls. Only the first call has an effect.
pub fn set_handlers(on_blocked: fn(), on_poll: fn()) {
    let _first = HANDLERS.set(WaitHandlers { on_blocked, on_poll });
}

/// Records that the thread waits, in code that has no [`BlockedWatch`]. The code calls this again
/// and again during the wait.
pub fn record_poll() {
    if let Some(handlers) = HANDLERS.get() {
        (handlers.on_poll)();
    }
}

/// Notices that a wait of the current thread is long.
#[derive(Debug, Default)]
pub struct BlockedWatch {
    /// Whether the wait has slept since its beginning.
    has_slept: bool,
    /// The time from which the wait is measured: the end of its first sleep. Most waits end before
    /// that, and do not read the clock.
    since: Option<Instant>,
    /// Whether the handler was called.
    is_noticed: bool,
}

impl BlockedWatch {
    /// Creates the watch of a wait that begins now. Such a wait needs one check less until it is
    /// noticed.
    pub fn started() -> Self {
        Self { has_slept: true, since: Some(Instant::now()), is_noticed: false }
    }

    /// Calls the handler, if the wait is long and the handler was not called in this wait. The
    /// caller calls this function before each of its sleeps. Returns how long it may sleep before
    /// the next check, or `None` if it needs no further check.
    pub fn check(&mut self) -> Option<Duration> {
        let after = debug::blocked_call_threshold().filter(|_| !self.is_noticed)?;
        if !std::mem::replace(&mut self.has_slept, true) {
            return Some(after);
        }
        let lasted = self.since.get_or_insert_with(Instant::now).elapsed();
        if lasted < after {
            return Some(after.saturating_sub(lasted));
        }
        self.is_noticed = true;
        if let Some(handlers) = HANDLERS.get() {
            (handlers.on_blocked)();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_wait_is_noticed_once() {
        let mut watch = BlockedWatch::default();
        let after = debug::blocked_call_threshold().unwrap();
        assert_eq!(watch.check(), Some(after));
        let left = watch.check().unwrap();
        assert!(left <= after && left > Duration::ZERO);
        watch.since = watch.since.and_then(|since| since.checked_sub(after));
        assert_eq!(watch.check(), None);
        assert!(watch.is_noticed);
        assert_eq!(watch.check(), None);
    }
}
