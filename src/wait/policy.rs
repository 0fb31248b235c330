//! The wait policy: what a waiter does until its condition holds. The phases are:
//!
//! 1. **Spin**: the waiter polls and keeps the core. A sleeper needs tens of microseconds to wake,
//!    so a short spin pays off if the awaited thread runs on another core.
//! 2. **Yield**: the waiter yields the core before each poll, so that an awaited thread on the same
//!    core can run.
//! 3. **Sleep**: the waiter sleeps on its doorbell, or between polls if it has no doorbell.
//!
//! [`WaitPolicy`] has the length of the phases. [`super::spin_history`] decides whether a waiter
//! skips the spin phase, and [`super::yield_history`] whether it skips the yield phase. Each loop
//! in this file ends after a number of polls or a length of time.

use super::yield_history;
use crate::base::processor::load_fence;
use std::time::{Duration, Instant};

/// The number of polls at the beginning of a spin that follow each other without a pause. A pause
/// would last as long as the transfer of a cache line between two cores.
pub(super) const FIRST_POLLS: u32 = 100;

/// The number of polls that last about as long as two context switches.
pub(super) const POLLS_PER_YIELD: u32 = 100;

/// The length of the yield phase.
const YIELD_TIME: Duration = Duration::from_micros(1000);

/// False under the model checker loom. Loom chooses which thread runs, so polling would only
/// multiply its work.
const POLLING_ENABLED: bool = cfg!(not(loom));

/// The length of a waiter's phases.
#[derive(Clone, Copy, Debug)]
pub struct WaitPolicy {
    /// The length of the spin phase. A sleeper needs tens of microseconds to wake, so the spin
    /// phase should be longer than that.
    pub spin_time: Duration,
    /// Whether the host has more runnable threads than cores, so that spinning would keep the
    /// awaited thread from running. If so, the wait has no spin phase.
    pub is_oversubscribed: bool,
}

/// A phase of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitPhase {
    /// Poll, and keep the core.
    Spin,
    /// Yield the core before the next poll.
    Yield,
    /// Sleep before the next poll.
    Sleep,
}

impl WaitPolicy {
    /// The policy for waits that may be long: the wait does not spin, and sleeps after the yield
    /// phase.
    pub const SLEEP_SOON: Self = Self { spin_time: Duration::ZERO, is_oversubscribed: true };

    /// Returns whether a wait has a spin phase.
    pub(super) fn may_spin(&self) -> bool {
        POLLING_ENABLED && !self.is_oversubscribed
    }

    /// Returns the phase of a wait that has lasted for this time.
    pub fn phase(&self, lasted: Duration) -> WaitPhase {
        let spin_time = if self.may_spin() { self.spin_time } else { Duration::ZERO };
        if lasted < spin_time {
            WaitPhase::Spin
        } else if POLLING_ENABLED && lasted < spin_time + YIELD_TIME {
            WaitPhase::Yield
        } else {
            WaitPhase::Sleep
        }
    }

    /// Separates two polls of a short loop: yields the core on an oversubscribed host, and pauses
    /// the processor on other hosts.
    #[inline]
    pub fn separate_polls(&self) {
        if self.is_oversubscribed {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
}

/// Polls at most `max_polls` times until `poll` returns a value. Returns that value. A load fence
/// between two polls keeps the processor from overlapping them.
#[inline]
pub fn spin_until_some<T>(max_polls: u32, mut poll: impl FnMut() -> Option<T>) -> Option<T> {
    (0..max_polls).find_map(|_| {
        let found = poll();
        if found.is_none() {
            load_fence();
        }
        found
    })
}

/// Polls at most `max_polls` times until `condition` holds. Returns whether it holds.
#[inline]
pub fn spin_until(max_polls: u32, mut condition: impl FnMut() -> bool) -> bool {
    spin_until_some(max_polls, || condition().then_some(())).is_some()
}

/// The end of a spin phase.
#[derive(Clone, Copy, Debug)]
pub(super) struct SpinLimit {
    pub(super) spin_time: Duration,
    /// The start of the spin. `None` means that the time counts from the first read of the clock.
    /// Many waits end before that, and one read of the clock costs as much as many polls of memory.
    pub(super) started: Option<Instant>,
    /// The number of polls between two reads of the clock.
    pub(super) polls_per_check: u32,
}

/// Polls in a tight loop until `ready` returns a value, the limit has passed, or `is_cancelled`
/// returns true.
pub(super) fn spin_for<T>(
    mut limit: SpinLimit,
    is_cancelled: impl Fn() -> bool,
    ready: &mut impl FnMut() -> Option<T>,
) -> Option<T> {
    loop {
        for _ in 0..limit.polls_per_check {
            if let Some(value) = ready() {
                return Some(value);
            }
            std::hint::spin_loop();
        }
        let started = limit.started.get_or_insert_with(Instant::now);
        if is_cancelled() || started.elapsed() >= limit.spin_time {
            return None;
        }
    }
}

/// Polls for the length of the yield phase, but at most for `limit`. Yields the core before each
/// poll. Returns the value of a successful poll with the number of yields.
pub(super) fn yield_for<T>(
    limit: Duration,
    is_cancelled: impl Fn() -> bool,
    ready: &mut impl FnMut() -> Option<T>,
) -> Option<(T, u32)> {
    if !POLLING_ENABLED || !yield_history::may_yield() {
        return None;
    }
    let (started, limit) = (Instant::now(), YIELD_TIME.min(limit));
    let (mut yields, mut lasted) = (0, Duration::ZERO);
    while lasted < limit && !is_cancelled() {
        std::thread::yield_now();
        yields += 1;
        let before = std::mem::replace(&mut lasted, started.elapsed());
        yield_history::record(lasted - before);
        if let Some(value) = ready() {
            return Some((value, yields));
        }
    }
    None
}

/// Yields the core, unless long yields have shown that sleeping is better. Returns whether it
/// yielded.
pub fn try_yield() -> bool {
    let may_yield = yield_history::may_yield();
    if may_yield {
        let before = Instant::now();
        std::thread::yield_now();
        yield_history::record(before.elapsed());
    }
    may_yield
}

/// Yields the core up to `max_yields` times, and polls after each yield. Returns the value of a
/// successful poll. Use this function for a small number of yields, since each yield lets another
/// runnable thread use the core. Use [`wait_until`](super::wait_until) for longer waits.
pub fn yield_until<T>(max_yields: u32, mut ready: impl FnMut() -> Option<T>) -> Option<T> {
    let max_yields = if POLLING_ENABLED { max_yields } else { 0 };
    (0..max_yields).find_map(|_| {
        std::thread::yield_now();
        ready()
    })
}

/// Yields the core as [`yield_until`], but not at all if long yields have shown that sleeping is
/// better.
///
/// If `is_core_wanted` returns false, no other thread needs the core. The function then polls
/// `POLLS_PER_YIELD` times before it yields, which takes about as long as a yield and the return to
/// this thread.
pub fn yield_if_short<T>(
    max_yields: u32,
    is_core_wanted: impl Fn() -> bool,
    mut ready: impl FnMut() -> Option<T>,
) -> Option<T> {
    if !POLLING_ENABLED || !yield_history::may_yield() {
        return None;
    }
    (0..max_yields).find_map(|_| {
        let found =
            if is_core_wanted() { None } else { spin_until_some(POLLS_PER_YIELD, &mut ready) };
        found.or_else(|| {
            let before = Instant::now();
            std::thread::yield_now();
            yield_history::record(before.elapsed());
            ready()
        })
    })
}

#[cfg(test)]
mod tests {
    use super::WaitPhase::{Sleep, Spin, Yield};
    use super::*;

    #[test]
    fn phases_follow_each_other() {
        let us = Duration::from_micros;
        let policy = WaitPolicy { spin_time: us(20), is_oversubscribed: false };
        let phases = [0, 19, 20, 1019, 1020].map(|lasted| policy.phase(us(lasted)));
        assert_eq!(phases, [Spin, Spin, Yield, Yield, Sleep]);
        let oversubscribed = WaitPolicy { is_oversubscribed: true, ..policy };
        assert_eq!([0, 999, 1000].map(|it| oversubscribed.phase(us(it))), [Yield, Yield, Sleep]);
    }

    #[test]
    fn bounded_reads_yield_even_after_long_yields() {
        yield_history::record(Duration::from_secs(1));
        let polls = std::cell::Cell::new(0);
        let poll = || {
            polls.set(polls.get() + 1);
            (polls.get() == 5).then_some(())
        };
        assert!(yield_if_short(9, || true, poll).is_none() && polls.get() == 0);
        assert!(yield_until(9, poll).is_some());
    }

    /// Yields without regard to the yields before, which may have been long on a busy machine.
    fn yield_afresh<T>(
        max_yields: u32,
        is_core_wanted: impl Fn() -> bool,
        ready: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        yield_history::record(Duration::ZERO);
        yield_if_short(max_yields, is_core_wanted, ready)
    }

    #[test]
    fn yielding_ends_when_ready() {
        let polls = std::cell::Cell::new(0);
        let poll = |at| {
            polls.set(polls.get() + 1);
            (polls.get() == at).then_some(at)
        };
        assert!(yield_afresh(3, || true, || poll(2)) == Some(2) && polls.get() == 2);
        assert!(yield_afresh(3, || true, || poll(9)).is_none() && polls.get() == 5);
        assert!(yield_afresh(0, || true, || poll(6)).is_none() && polls.get() == 5);
    }

    #[test]
    fn unwanted_core_is_polled_before_yielding() {
        let each = POLLS_PER_YIELD + 1;
        let polls = std::cell::Cell::new(0);
        let poll = |at| {
            polls.set(polls.get() + 1);
            (polls.get() == at).then_some(())
        };
        assert!(yield_afresh(2, || false, || poll(each + 3)).is_some() && polls.get() == each + 3);
        polls.set(0);
        assert!(yield_afresh(2, || false, || poll(0)).is_none() && polls.get() == 2 * each);
        polls.set(0);
        // After its first poll, the core is wanted by another thread.
        let is_wanted = || polls.get() > 0;
        assert!(yield_afresh(2, is_wanted, || poll(0)).is_none() && polls.get() == each + 1);
    }
}
