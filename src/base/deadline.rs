//! A point in time after which waiting ends. Every call that can block takes one.

use std::cell::OnceCell;
use std::time::{Duration, Instant};

/// The longest time-out that is kept as a finite one: a century.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// A monotonic deadline, with the time it was made, so that errors can say how long they waited.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    started: Instant,
    allowed: Duration,
}

impl Deadline {
    /// Ends `allowed` from now.
    pub fn after(allowed: Duration) -> Self {
        Self { started: Instant::now(), allowed: allowed.min(FOREVER) }
    }

    /// Ends `ms` milliseconds from now.
    pub fn after_ms(ms: u64) -> Self {
        Self::after(Duration::from_millis(ms))
    }

    /// Never ends. Only an abort ends such a wait.
    pub fn never() -> Self {
        Self::after(FOREVER)
    }

    /// The time left; zero once it has passed.
    pub fn left(&self) -> Duration {
        self.allowed.saturating_sub(self.started.elapsed())
    }

    /// True once it has passed.
    pub fn has_passed(&self) -> bool {
        self.left().is_zero()
    }

    /// When it was made.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// The time since it was made.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// The time that was allowed.
    pub fn allowed(&self) -> Duration {
        self.allowed
    }

    /// The earlier of this deadline and `slice` from now: for waits that must look around.
    #[must_use]
    pub fn capped(&self, slice: Duration) -> Self {
        Self::after(self.left().min(slice))
    }
}

/// A deadline that begins when it is looked at for the first time: most small operations are over before anybody needs the
/// clock, which costs as much as a part of them.
#[derive(Debug)]
pub struct LateDeadline {
    allowed: Duration,
    begun: OnceCell<Deadline>,
}

impl LateDeadline {
    /// Will end `ms` milliseconds after it has begun.
    pub fn after_ms(ms: u64) -> Self {
        Self { allowed: Duration::from_millis(ms), begun: OnceCell::new() }
    }

    /// The deadline, which has begun at the latest now.
    pub fn begun(&self) -> &Deadline {
        self.begun.get_or_init(|| Deadline::after(self.allowed))
    }
}

impl From<Deadline> for LateDeadline {
    fn from(deadline: Deadline) -> Self {
        Self { allowed: deadline.allowed, begun: OnceCell::from(deadline) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_deadline_begins_once() {
        let late = LateDeadline::after_ms(60_000);
        let before = Instant::now();
        let begun = *late.begun();
        assert!(begun.started() >= before && late.begun().started() == begun.started());
        assert_eq!(LateDeadline::from(begun).begun().started(), begun.started());
    }

    #[test]
    fn zero_has_passed_at_once_and_never_does_not() {
        assert!(Deadline::after_ms(0).has_passed());
        assert!(!Deadline::never().has_passed());
        assert!(!Deadline::after_ms(u64::MAX).has_passed());
        assert!(Deadline::never().capped(Duration::ZERO).has_passed());
    }
}
