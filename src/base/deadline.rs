//! A point in time after which waiting ends. Every call that can block takes one.

use std::cell::OnceCell;
use std::time::{Duration, Instant};

/// The longest time-out that is kept as a finite one: a century.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// A time-out as callers of the C interface and environment variables give it: one number, one
/// meaning everywhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Timeout {
    /// The default of the object or operation.
    #[default]
    Default,
    /// No limit.
    Forever,
    /// No time: the call looks once.
    NoWait,
    /// This many milliseconds: at least 1, less than a century.
    Ms(u64),
}

impl Timeout {
    /// The number of [`Timeout::Forever`].
    pub const FOREVER: i64 = -1;
    /// The number of [`Timeout::NoWait`].
    pub const NO_WAIT: i64 = -2;

    /// The time-out with this number; `None` for other negative numbers. A century or more is for
    /// ever.
    pub fn from_number(number: i64) -> Option<Self> {
        match number {
            0 => Some(Self::Default),
            Self::FOREVER => Some(Self::Forever),
            Self::NO_WAIT => Some(Self::NoWait),
            _ => u64::try_from(number).ok().map(Self::after_ms),
        }
    }

    /// The number of this time-out.
    pub fn number(self) -> i64 {
        match self {
            Self::Default => 0,
            Self::Forever => Self::FOREVER,
            Self::NoWait => Self::NO_WAIT,
            Self::Ms(ms) => i64::try_from(ms).unwrap_or(Self::FOREVER),
        }
    }

    /// A time-out of this many milliseconds; 0 is no time.
    pub fn after_ms(ms: u64) -> Self {
        match ms {
            0 => Self::NoWait,
            _ if Duration::from_millis(ms) >= FOREVER => Self::Forever,
            _ => Self::Ms(ms),
        }
    }

    /// The same limit in milliseconds: `default_ms` for the default, 0 for no time, `u64::MAX` for
    /// ever.
    pub fn ms_or(self, default_ms: u64) -> u64 {
        match self {
            Self::Default => default_ms,
            Self::Forever => u64::MAX,
            Self::NoWait => 0,
            Self::Ms(ms) => ms,
        }
    }
}

/// A monotonic deadline, with the time it was made, so that errors can say how long they waited.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    started: Instant,
    timeout: Duration,
}

impl Deadline {
    /// Ends `timeout` from now.
    pub fn after(timeout: Duration) -> Self {
        Self { started: Instant::now(), timeout: timeout.min(FOREVER) }
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
    pub fn remaining(&self) -> Duration {
        self.timeout.saturating_sub(self.started.elapsed())
    }

    /// True once it has passed.
    pub fn has_passed(&self) -> bool {
        self.remaining().is_zero()
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
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The earlier of this deadline and `slice` from now: for waits that must look around.
    #[must_use]
    pub fn capped(&self, slice: Duration) -> Self {
        Self::after(self.remaining().min(slice))
    }
}

/// A deadline that begins when it is looked at for the first time: most small operations are over
/// before anybody needs the clock, which costs as much as a part of them.
#[derive(Debug)]
pub struct LazyDeadline {
    timeout: Duration,
    started: OnceCell<Deadline>,
}

impl LazyDeadline {
    /// Will end `ms` milliseconds after it has begun.
    pub fn after_ms(ms: u64) -> Self {
        Self { timeout: Duration::from_millis(ms), started: OnceCell::new() }
    }

    /// The deadline, which has begun at the latest now.
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
        let begun = *late.get_or_start();
        assert!(begun.started() >= before && late.get_or_start().started() == begun.started());
        assert_eq!(LazyDeadline::from(begun).get_or_start().started(), begun.started());
    }

    #[test]
    fn zero_deadline_has_passed_and_never_has_not() {
        assert!(Deadline::after_ms(0).has_passed());
        assert!(!Deadline::never().has_passed());
        assert!(!Deadline::after_ms(u64::MAX).has_passed());
        assert!(Deadline::never().capped(Duration::ZERO).has_passed());
    }
}
