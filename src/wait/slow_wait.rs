//! [`SlowWaitWatch`]: decides when a long wait is logged. The first report comes after the
//! configured time (`base::debug`). Each further report comes when the wait has lasted twice as
//! long as at the previous report, for example after 10, 20 and 40 seconds.
//!
//! A waiter calls [`SlowWaitWatch::check`] after each of its polls. A wait that ends before the
//! first report has no further cost. The watch also contains a [`BlockedWatch`], which notices that
//! the thread is blocked. This module does not depend on what the waiter waits for.

use super::blocked_thread::BlockedWatch;
use crate::base::debug;
use std::time::{Duration, Instant};

/// The time since a wait began, and the time of its next report.
#[derive(Debug, Default)]
pub struct SlowWaitWatch {
    since: Option<Instant>,
    /// The length of the wait at the next report.
    next_report: Option<Duration>,
    blocked: BlockedWatch,
}

impl SlowWaitWatch {
    /// Creates the watch of a wait that begins now, for a waiter whose checks are costly.
    pub fn started() -> Self {
        Self { blocked: BlockedWatch::started(), ..Self::default() }
    }

    /// Calls `report` with the length of the wait if a report is due, and notices that the thread
    /// is blocked. Returns how long the caller may sleep before the next check, or `None` if it
    /// needs no further check. The first call counts as the beginning of the wait.
    pub fn check(&mut self, report: impl FnOnce(DisplaySeconds)) -> Option<Duration> {
        let intervals = [self.blocked.check(), self.check_report(report)];
        intervals.into_iter().flatten().min()
    }

    /// The part of [`Self::check`] for the reports.
    fn check_report(&mut self, report: impl FnOnce(DisplaySeconds)) -> Option<Duration> {
        let after = debug::slow_wait_threshold()?;
        let lasted = self.since.get_or_insert_with(Instant::now).elapsed();
        let mut next = self.next_report.unwrap_or(after);
        if lasted >= next {
            report(DisplaySeconds(lasted));
            next = lasted.saturating_mul(2);
        }
        self.next_report = Some(next);
        Some(next.saturating_sub(lasted))
    }

    /// Ends the wait. The next check starts a new one.
    pub fn reset(&mut self) {
        *self = Self::default();
    }
}

/// Displays a duration as `30 s`, or below one second as `120 ms`.
#[derive(Clone, Copy, Debug)]
pub struct DisplaySeconds(pub Duration);

impl std::fmt::Display for DisplaySeconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0.as_secs() {
            0 => write!(f, "{} ms", self.0.as_millis()),
            seconds => write!(f, "{seconds} s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_displayed_in_seconds() {
        assert_eq!(DisplaySeconds(Duration::from_millis(120)).to_string(), "120 ms");
        assert_eq!(DisplaySeconds(Duration::from_millis(30_010)).to_string(), "30 s");
    }
}
