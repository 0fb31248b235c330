//! [`AwaitedReport`]: reports for which ranks a long wait of an operation is. The search for
//! deadlocks uses the reports.
//!
//! A wait calls [`AwaitedReport::check`] before each of its sleeps. The first report comes when the
//! wait has lasted for the configured time (`base::debug`), and further reports come at intervals
//! of the same length. A wait that ends before the first report only reads the clock.

use super::Operation;
use crate::base::debug;
use crate::base::ids::Rank;
use crate::base::progress_observer::ProgressObserver;
use std::time::{Duration, Instant};

/// The reports of one wait.
#[derive(Debug)]
pub(super) struct AwaitedReport<'a> {
    observer: &'a dyn ProgressObserver,
    /// The sequence number of the operation.
    sequence: u64,
    /// The time of the next report; `None` before the first check.
    next: Option<Instant>,
    has_reported: bool,
}

impl<'a> AwaitedReport<'a> {
    /// Creates the report of a wait that begins now.
    pub(super) fn of(operation: &Operation<'a>) -> Self {
        let (observer, sequence) = (operation.observer, operation.descriptor.sequence);
        Self { observer, sequence, next: None, has_reported: false }
    }

    /// Reports the ranks that `awaited` returns, if a report is due. Returns how long the caller
    /// may sleep before the next check, or `None` if it needs no further check.
    pub(super) fn check(&mut self, awaited: impl FnOnce() -> Vec<Rank>) -> Option<Duration> {
        let interval = debug::blocked_call_threshold()?;
        let now = Instant::now();
        let next = *self.next.get_or_insert(now + interval);
        if now < next {
            return Some(next - now);
        }
        self.observer.record_awaited(self.sequence, &awaited());
        self.has_reported = true;
        self.next = Some(now + interval);
        Some(interval)
    }

    /// Ends the wait. The next check starts a new one.
    pub(super) fn reset(&mut self) {
        self.next = None;
        if std::mem::take(&mut self.has_reported) {
            self.observer.record_awaited(self.sequence, &[]);
        }
    }
}

impl Drop for AwaitedReport<'_> {
    fn drop(&mut self) {
        self.reset();
    }
}
