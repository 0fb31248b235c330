//! All waits of the library.
//!
//! A wait polls any number of conditions (control slots in shared memory, flags, sockets), so it
//! cannot sleep on one of them. It sleeps on its [`doorbell`], and each thread or process that
//! changes a condition notifies that doorbell. Every wait has a deadline and checks an abort
//! condition. The library has no other blocking primitive; the service thread's poll is ended by
//! its own wake-up socket.
//!
//! This module uses atomics, futexes and clocks. It does not depend on the conditions.

pub mod adaptive_spin;
pub mod doorbell;
mod futex_word;
pub mod io;
pub mod poll_backoff;
pub mod pollable_flag;
pub mod service;
pub mod service_task;
pub mod slow_wait;
mod spin_history;

use crate::base::deadline::Deadline;
use crate::base::error::Error;
use crate::base::spin::spin_until_some;
use crate::sys::thread;
use doorbell::Doorbell;
use std::time::{Duration, Instant};

/// How many polls a wait makes before it checks the deadline and the abort condition again.
const POLLS_PER_CHECK: u32 = 1000;

/// How many polls a wait makes first without a spin pause between them, because a pause lasts as
/// long as the transfer of a cache line between two cores.
const FIRST_POLLS: u32 = 100;

/// This number of polls lasts about as long as two context switches.
const POLLS_PER_YIELD: u32 = 100;

/// How long a wait keeps yielding the core before it sleeps.
const YIELD_FOR: Duration = Duration::from_micros(1000);

/// Why a wait ended without a value.
#[derive(Debug)]
pub enum WaitInterrupt {
    /// The deadline passed.
    Deadline,
    /// The abort condition holds.
    Aborted(Error),
}

/// What a wait does before it sleeps.
#[derive(Clone, Copy, Debug)]
pub struct WaitPolicy {
    /// How long to spin first. A sleeper needs tens of microseconds to wake, so the spin should be
    /// longer than that.
    pub spin_time: Duration,
    /// The host has more runnable threads than cores, and spinning would keep the awaited thread
    /// from running. The wait yields the core after each poll.
    pub is_oversubscribed: bool,
}

impl WaitPolicy {
    /// The policy for waits that may be long: the wait sleeps early.
    pub const SLEEP_SOON: Self = Self { spin_time: Duration::ZERO, is_oversubscribed: true };
}

/// Waits until `ready` returns a value, the deadline passes, or `abort_reason` returns an error.
/// After an abort, `ready` is polled once more, so a value that became ready before the abort still
/// counts.
///
/// `ready` must depend only on memory whose writers notify `doorbell` after the write.
///
/// # Errors
/// The reason why the wait ended without a value.
pub fn wait_until<T>(
    doorbell: &Doorbell,
    policy: WaitPolicy,
    deadline: &Deadline,
    abort_reason: impl Fn() -> Option<Error>,
    ready: impl FnMut() -> Option<T>,
) -> Result<T, WaitInterrupt> {
    wait_until_watched(doorbell, policy, deadline, abort_reason, ready, || None)
}

/// Like [`wait_until`], but calls `before_sleep` each time before the wait sleeps, for example to
/// report a long wait. `before_sleep` returns the maximum length of that sleep.
///
/// # Errors
/// As for [`wait_until`].
pub fn wait_until_watched<T>(
    doorbell: &Doorbell,
    policy: WaitPolicy,
    deadline: &Deadline,
    abort_reason: impl Fn() -> Option<Error>,
    mut ready: impl FnMut() -> Option<T>,
    mut before_sleep: impl FnMut() -> Option<Duration>,
) -> Result<T, WaitInterrupt> {
    if let Some(value) = ready() {
        return Ok(value);
    }
    if let Some(value) = spin_then_yield(policy, deadline, &abort_reason, &mut ready) {
        return Ok(value);
    }
    loop {
        if let Some(error) = abort_reason() {
            return ready().ok_or(WaitInterrupt::Aborted(error));
        }
        let left = deadline.remaining();
        if left.is_zero() {
            return Err(WaitInterrupt::Deadline);
        }
        let limit = before_sleep().map_or(left, |most| left.min(most));
        if let Some(value) =
            doorbell.sleep_unless_ready(limit, || abort_reason().is_none(), &mut ready)
        {
            return Ok(value);
        }
    }
}

/// Yields the core up to `max_yields` times, and polls after each yield. Returns the value of a
/// successful poll.
///
/// If no other thread needs the core (`is_core_wanted` is false), it first polls `POLLS_PER_YIELD`
/// times, which takes about as long as a yield and a return. Use this function for a small number
/// of yields; each yield lets the next runnable thread use the core. Use [`wait_until`] for longer
/// waits.
pub fn yield_until<T>(
    max_yields: u32,
    is_core_wanted: impl Fn() -> bool,
    mut ready: impl FnMut() -> Option<T>,
) -> Option<T> {
    if !SPIN_ENABLED {
        return None;
    }
    (0..max_yields).find_map(|_| {
        let found =
            if is_core_wanted() { None } else { spin_until_some(POLLS_PER_YIELD, &mut ready) };
        found.or_else(|| {
            std::thread::yield_now();
            ready()
        })
    })
}

/// Returns the core that this thread runs on, if the system reports it.
pub fn current_core() -> Option<usize> {
    thread::current_core()
}

/// Sleeps for some time, but not beyond the deadline: between two polls of a condition without
/// notifications.
pub fn pause(time: Duration, deadline: &Deadline) {
    let end = deadline.capped(time);
    // No thread notifies this doorbell; the time limit ends the sleep.
    let doorbell = Doorbell::default();
    while !end.has_passed() {
        let ticket = doorbell.prepare_to_sleep();
        doorbell.sleep(ticket, end.remaining());
        doorbell.finish_sleep();
    }
}

/// The model checker chooses the schedule; polling would only multiply its work.
const SPIN_ENABLED: bool = cfg!(not(loom));

/// Polls before the wait sleeps: first while it keeps the core, then with a yield before each poll.
fn spin_then_yield<T>(
    policy: WaitPolicy,
    deadline: &Deadline,
    abort_reason: &impl Fn() -> Option<Error>,
    ready: &mut impl FnMut() -> Option<T>,
) -> Option<T> {
    let mut may_spin = !policy.is_oversubscribed && SPIN_ENABLED;
    if may_spin {
        // Most waits end before the clock, which costs as much as many polls, is read for the first
        // time.
        if let Some(value) = spin_until_some(FIRST_POLLS, &mut *ready) {
            return Some(value);
        }
        may_spin = spin_history::may_spin();
    }
    if may_spin && let Some(value) = spin(policy, abort_reason, ready) {
        spin_history::record_success();
        return Some(value);
    }
    let (value, yields) = yield_and_poll(deadline, abort_reason, ready)?;
    if may_spin {
        spin_history::record_failed_spin(yields);
    }
    Some(value)
}

/// Polls in a tight loop for a while. An abort ends the loop; `wait_until` then returns the reason.
fn spin<T>(
    policy: WaitPolicy,
    abort_reason: &impl Fn() -> Option<Error>,
    ready: &mut impl FnMut() -> Option<T>,
) -> Option<T> {
    let mut started = None;
    loop {
        for _ in 0..POLLS_PER_CHECK {
            if let Some(value) = ready() {
                return Some(value);
            }
            std::hint::spin_loop();
        }
        let started = started.get_or_insert_with(Instant::now);
        if abort_reason().is_some() || started.elapsed() >= policy.spin_time {
            return None;
        }
    }
}

/// Yields the core before each poll; also returns the number of yields.
fn yield_and_poll<T>(
    deadline: &Deadline,
    abort_reason: &impl Fn() -> Option<Error>,
    ready: &mut impl FnMut() -> Option<T>,
) -> Option<(T, u32)> {
    let started = Instant::now();
    let limit = if SPIN_ENABLED { YIELD_FOR.min(deadline.remaining()) } else { Duration::ZERO };
    let mut yields = 0;
    while started.elapsed() < limit && abort_reason().is_none() {
        std::thread::yield_now();
        yields += 1;
        if let Some(value) = ready() {
            return Some((value, yields));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::error::ErrorKind;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    const WAIT_POLICY: WaitPolicy =
        WaitPolicy { spin_time: Duration::from_micros(20), is_oversubscribed: false };

    #[test]
    fn yielding_ends_when_ready() {
        let polls = std::cell::Cell::new(0);
        let poll = |at| {
            polls.set(polls.get() + 1);
            (polls.get() == at).then_some(at)
        };
        assert!(yield_until(3, || true, || poll(2)) == Some(2) && polls.get() == 2);
        assert!(yield_until(3, || true, || poll(9)).is_none() && polls.get() == 5);
        assert!(yield_until(0, || true, || poll(6)).is_none() && polls.get() == 5);
    }

    #[test]
    fn unwanted_core_is_polled_before_yielding() {
        let each = POLLS_PER_YIELD + 1;
        let polls = std::cell::Cell::new(0);
        let poll = |at| {
            polls.set(polls.get() + 1);
            (polls.get() == at).then_some(())
        };
        assert!(yield_until(2, || false, || poll(each + 3)).is_some() && polls.get() == each + 3);
        polls.set(0);
        assert!(yield_until(2, || false, || poll(0)).is_none() && polls.get() == 2 * each);
        polls.set(0);
        // Another thread needs the core from now on.
        let is_wanted = || polls.get() > 0;
        assert!(yield_until(2, is_wanted, || poll(0)).is_none() && polls.get() == each + 1);
    }

    #[test]
    fn deadline_or_abort_ends_the_wait() {
        let doorbell = Doorbell::default();
        let never = || None::<()>;
        let outcome = wait_until(&doorbell, WAIT_POLICY, &Deadline::after_ms(5), || None, never);
        assert!(matches!(outcome, Err(WaitInterrupt::Deadline)));
        let halted = || Some(Error::new(ErrorKind::Aborted, "stop"));
        let outcome = wait_until(&doorbell, WAIT_POLICY, &Deadline::never(), halted, never);
        assert!(
            matches!(outcome, Err(WaitInterrupt::Aborted(e)) if e.kind() == ErrorKind::Aborted)
        );
    }

    #[test]
    fn every_notification_wakes_the_waiter() {
        // Two threads pass a counter back and forth; a lost wake-up would end in the deadline.
        let shared = Arc::new((AtomicU64::new(0), Doorbell::default(), Doorbell::default()));
        let other = Arc::clone(&shared);
        let policy = WaitPolicy { spin_time: Duration::ZERO, is_oversubscribed: true };
        let rounds = 2000;
        let echo = std::thread::Builder::new()
            .spawn(move || {
                for round in 0..rounds {
                    let ready = || (other.0.load(Ordering::Acquire) == 2 * round + 1).then_some(());
                    wait_until(&other.2, policy, &Deadline::after_ms(20_000), || None, ready)
                        .unwrap();
                    other.0.store(2 * round + 2, Ordering::Release);
                    other.1.notify();
                }
            })
            .unwrap();
        for round in 0..rounds {
            shared.0.store(2 * round + 1, Ordering::Release);
            shared.2.notify();
            let ready = || (shared.0.load(Ordering::Acquire) == 2 * round + 2).then_some(());
            wait_until(&shared.1, policy, &Deadline::after_ms(20_000), || None, ready).unwrap();
        }
        echo.join().unwrap();
    }
}
