//! Timeouts and deadlines. Every call that can block takes one.

use std::cell::OnceCell;
use std::time::{Duration, Instant};

/// A timeout of at least this time, a century, counts as no limit.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// A timeout of the C interface and of environment variables: one number, with the same meaning
/// everywhere.
///
/// | number | meaning |
/// |---|---|
/// | n > 0 | n milliseconds |
/// | 0 | the default |
/// | -1 | no limit |
/// | -2 | no wait |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Timeout {
    /// The default of the object or operation.
    #[default]
    Default,
    /// No limit.
    Forever,
    /// No wait: the call polls once.
    NoWait,
    /// The number of milliseconds: at least 1, less than a century.
    Ms(u64),
}

impl Timeout {
    /// The number of [`Timeout::Forever`].
    pub const FOREVER: i64 = -1;
    /// The number of [`Timeout::NoWait`].
    pub const NO_WAIT: i64 = -2;

    /// Returns the timeout with this number, or `None` for other negative numbers. A century or
    /// more is [`Timeout::Forever`].
    pub fn from_number(number: i64) -> Option<Self> {
        match number {
            0 => Some(Self::Default),
            Self::FOREVER => Some(Self::Forever),
            Self::NO_WAIT => Some(Self::NoWait),
            _ => u64::try_from(number).ok().map(Self::after_ms),
        }
    }

    /// Returns the number of this timeout.
    pub fn number(self) -> i64 {
        match self {
            Self::Default => 0,
            Self::Forever => Self::FOREVER,
            Self::NoWait => Self::NO_WAIT,
            Self::Ms(ms) => i64::try_from(ms).unwrap_or(Self::FOREVER),
        }
    }

    /// Returns a timeout of `ms` milliseconds; 0 is [`Timeout::NoWait`].
    pub fn after_ms(ms: u64) -> Self {
        match ms {
            0 => Self::NoWait,
            _ if Duration::from_millis(ms) >= FOREVER => Self::Forever,
            _ => Self::Ms(ms),
        }
    }

    /// Returns the limit in milliseconds: `default_ms` for the default, 0 for no wait, `u64::MAX`
    /// for no limit.
    pub fn ms_or(self, default_ms: u64) -> u64 {
        match self {
            Self::Default => default_ms,
            Self::Forever => u64::MAX,
            Self::NoWait => 0,
            Self::Ms(ms) => ms,
        }
    }
}

/// A monotonic deadline with its start time, so that errors can report the time waited.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    started: Instant,
    timeout: Duration,
}

impl Deadline {
    /// Returns a deadline that ends `timeout` from now.
    pub fn after(timeout: Duration) -> Self {
        Self { started: Instant::now(), timeout: timeout.min(FOREVER) }
    }

    /// Returns a deadline that ends `ms` milliseconds from now.
    pub fn after_ms(ms: u64) -> Self {
        Self::after(Duration::from_millis(ms))
    }

    /// Returns a deadline that never passes. A wait with this deadline ends only by its condition
    /// or an abort.
    pub fn never() -> Self {
        Self::after(FOREVER)
    }

    /// Returns the remaining time, or zero after the deadline.
    #[inline(never)]
    pub fn remaining(&self) -> Duration {
        self.timeout.saturating_sub(self.started.elapsed())
    }

    /// Returns whether the deadline has passed.
    pub fn has_passed(&self) -> bool {
        self.remaining().is_zero()
    }

    /// Returns the start time.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// Returns the time since the start.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Returns the timeout.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Returns the deadline that has the same start and ends later by `time`.
    #[must_use]
    pub fn extended(&self, time: Duration) -> Self {
        Self { timeout: self.timeout.saturating_add(time).min(FOREVER), ..*self }
    }

    /// Returns the earlier of this deadline and the time `slice` from now. A caller that polls uses
    /// it to limit each of its waits.
    #[must_use]
    pub fn capped(&self, slice: Duration) -> Self {
        Self::after(self.remaining().min(slice))
    }
}

/// A deadline that starts at its first access. Most small operations complete without an access.
/// They thus save a clock read, which costs a considerable part of the time of a small operation.
#[derive(Debug)]
pub struct LazyDeadline {
    timeout: Duration,
    started: OnceCell<Deadline>,
}

impl LazyDeadline {
    /// Returns a deadline of `ms` milliseconds that has not started.
    pub fn after_ms(ms: u64) -> Self {
        Self { timeout: Duration::from_millis(ms), started: OnceCell::new() }
    }

    /// Returns the deadline, and starts it if it has not started.
    pub fn get_or_start(&self) -> &Deadline {
        self.started.get_or_init(|| Deadline::after(self.timeout))
    }
}

impl From<Deadline> for LazyDeadline {
    fn from(deadline: Deadline) -> Self {
        Self { timeout: deadline.timeout, started: OnceCell::from(deadline) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeout_numbers_round_trip() {
        let century_ms = u64::try_from(FOREVER.as_millis()).unwrap();
        let century = i64::try_from(century_ms).unwrap();
        for (number, timeout) in [
            (0, Some(Timeout::Default)),
            (-1, Some(Timeout::Forever)),
            (-2, Some(Timeout::NoWait)),
            (-3, None),
            (i64::MIN, None),
            (1, Some(Timeout::Ms(1))),
            (century - 1, Some(Timeout::Ms(century_ms - 1))),
            (century, Some(Timeout::Forever)),
            (i64::MAX, Some(Timeout::Forever)),
        ] {
            assert_eq!(Timeout::from_number(number), timeout, "{number}");
            let again = timeout.map(|timeout| Timeout::from_number(timeout.number()));
            assert_eq!(again, timeout.map(Some), "{number}");
        }
    }

    #[test]
    fn a_timeout_in_milliseconds_keeps_its_meaning() {
        let all = [Timeout::Default, Timeout::Forever, Timeout::NoWait, Timeout::Ms(3)];
        assert_eq!(all.map(|timeout| timeout.ms_or(7)), [7, u64::MAX, 0, 3]);
        let others = [u64::MAX, 0, 3].map(Timeout::after_ms);
        assert_eq!(others, [Timeout::Forever, Timeout::NoWait, Timeout::Ms(3)]);
    }

    #[test]
    fn lazy_deadline_starts_once() {
        let late = LazyDeadline::after_ms(60_000);
        let before = Instant::now();
        let start = *late.get_or_start();
        assert!(start.started() >= before && late.get_or_start().started() == start.started());
        assert_eq!(LazyDeadline::from(start).get_or_start().started(), start.started());
    }

    #[test]
    fn zero_deadline_has_passed_and_never_has_not() {
        assert!(Deadline::after_ms(0).has_passed());
        assert!(!Deadline::never().has_passed());
        assert!(!Deadline::after_ms(u64::MAX).has_passed());
        assert!(Deadline::never().capped(Duration::ZERO).has_passed());
    }
}
