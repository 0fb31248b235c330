//! All waits of the library.
//!
//! A wait may poll several conditions: memory that other processes write, flags, sockets. It cannot
//! sleep on a single one of them. It sleeps on its [`doorbell`] instead, and each thread or process
//! that changes a condition notifies that doorbell. Every wait has a deadline and checks an abort
//! condition. The only other blocking call of the library is the poll of the service thread, which
//! other threads end by a byte on a socket.
//!
//! [`policy`] describes how long a wait spins, yields and sleeps. Two loops in other folders have
//! their own rules, which their comments explain: `algo/message/exchange.rs` and
//! `transport/matching/fast_path.rs`.
//!
//! This module uses atomics, futexes and clocks. It does not depend on what the conditions are.

pub mod blocked_thread;
pub mod doorbell;
mod futex_word;
mod growing_pause;
pub mod io;
pub mod policy;
pub mod poll_backoff;
pub mod pollable_flag;
pub mod service;
pub mod service_task;
pub mod slow_wait;
pub mod spin_history;
mod yield_history;

pub use policy::{WaitPhase, WaitPolicy, try_yield, yield_if_short};

use crate::base::deadline::Deadline;
use crate::base::error::Error;
use crate::sys::thread;
use doorbell::Doorbell;
use policy::{FIRST_POLLS, SpinLimit, spin_for, spin_until_some, yield_for};
use std::time::Duration;

/// The number of polls that a spinning wait makes between two checks of the clock and the abort
/// condition.
const POLLS_PER_CHECK: u32 = 1000;

/// Why a wait ended without a value.
#[derive(Debug)]
pub enum WaitInterrupt {
    /// The deadline passed.
    Deadline,
    /// The abort condition holds.
    Aborted(Error),
}

/// Waits until `ready` returns a value, the deadline passes, or `abort_reason` returns an error.
/// After an abort, polls `ready` once more, so that a value that became ready before the abort is
/// returned.
///
/// `ready` must depend only on memory whose writers notify `doorbell` after each write.
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

/// Does the same as [`wait_until`], and calls `before_sleep` each time before the wait sleeps, for
/// example to report a long wait. `before_sleep` returns the maximum length of that sleep.
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

/// Returns the core that this thread runs on, if the system reports it.
pub fn current_core() -> Option<usize> {
    thread::current_core()
}

/// Sleeps for `time`, but not beyond the deadline. Use it between two polls of a condition for
/// which no notification is sent.
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

/// Polls before the wait sleeps: first without giving up the core (spin), then with a yield of the
/// core before each poll.
fn spin_then_yield<T>(
    policy: WaitPolicy,
    deadline: &Deadline,
    abort_reason: &impl Fn() -> Option<Error>,
    ready: &mut impl FnMut() -> Option<T>,
) -> Option<T> {
    let is_cancelled = || abort_reason().is_some();
    let mut may_spin = policy.may_spin();
    if may_spin {
        // These polls read no clock, since a read of the clock costs as much as many polls. Most
        // waits end here.
        if let Some(value) = spin_until_some(FIRST_POLLS, &mut *ready) {
            return Some(value);
        }
        may_spin = spin_history::may_spin();
    }
    let limit =
        SpinLimit { spin_time: policy.spin_time, started: None, polls_per_check: POLLS_PER_CHECK };
    if may_spin && let Some(value) = spin_for(limit, is_cancelled, ready) {
        spin_history::record_success();
        return Some(value);
    }
    let (value, yields) = yield_for(deadline.remaining(), is_cancelled, ready)?;
    if may_spin {
        spin_history::record_failed_spin(yields);
    }
    Some(value)
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
