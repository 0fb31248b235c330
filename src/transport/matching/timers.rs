//! A queue of timers, ordered by the times at which they are due. The *target* of a timer
//! identifies what expires.
//!
//! The queue reads the clock only if it has a timer. To remove a timer, the caller must pass the
//! target and the same due time as at its insertion.

use std::collections::BTreeSet;
use std::time::Instant;

/// The timers of one kind of target.
#[derive(Debug)]
pub(super) struct TimerQueue<T>(BTreeSet<(Instant, T)>);

impl<T: Copy + Ord> TimerQueue<T> {
    /// Creates a queue without timers.
    pub(super) const fn new() -> Self {
        Self(BTreeSet::new())
    }

    /// Adds a timer.
    pub(super) fn insert(&mut self, due: Instant, target: T) {
        self.0.insert((due, target));
    }

    /// Removes a timer.
    pub(super) fn remove(&mut self, due: Instant, target: T) {
        self.0.remove(&(due, target));
    }

    /// Removes all timers.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns the due time of the next timer.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.0.first().map(|&(due, _)| due)
    }

    /// Removes the next timer if it is due. Returns its target.
    pub(super) fn take_due(&mut self) -> Option<T> {
        self.next_due().filter(|&due| due <= Instant::now())?;
        self.0.pop_first().map(|(_, target)| target)
    }
}
