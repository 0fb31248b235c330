//! When a long wait is told in the log: once it has lasted for as long as is set (`base::debug`),
//! and then each time it has lasted twice as long as when it was told last.
//!
//! Whoever waits looks around anyway now and then, and asks here. Nothing is done for a wait that
//! is over before that.
//!
//! Must not know: what is waited for.

use crate::base::debug;
use std::time::{Duration, Instant};

/// One wait.
#[derive(Debug, Default)]
pub struct SlowWaitWatch {
    since: Option<Instant>,
    /// After how long it is told next.
    next_report: Option<Duration>,
}

impl SlowWaitWatch {
    /// Calls `report` with the time that the wait has lasted, where that is to be told now; for how
    /// long one may sleep before the next look, or `None` where nothing will be told. The first
    /// look begins the wait.
    pub fn check(&mut self, report: impl FnOnce(DisplaySeconds)) -> Option<Duration> {
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

    /// The wait is over, and the next one not long yet.
    pub fn reset(&mut self) {
        *self = Self::default();
    }
}

/// A time as people say it: `30 s`, and below a second `120 ms`.
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
