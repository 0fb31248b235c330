//! [`AdaptiveSpin`]: decides whether a waiter spins before it sleeps.
//!
//! A sleeper needs tens of microseconds to wake, and the waker needs a few more. An answer from
//! another core arrives within ten microseconds, so a short spin is worthwhile. There are two
//! exceptions:
//!
//! * If the awaited thread shares this core, spinning only keeps it from running. Then the waiter
//!   yields the core and polls again.
//! * If the awaited thread is slow, neither helps.
//!
//! The history of recent waits decides between these cases. A method that has failed several times
//! is tried less and less often.

use std::time::{Duration, Instant};

/// How long one spin lasts.
const SPIN_TIME: Duration = Duration::from_micros(50);

/// A spin that took longer was interrupted by threads that need the core; it does not count as a
/// success.
const INTERRUPTED_AFTER: Duration = Duration::from_micros(500);

/// How many polls a spin makes between two reads of the clock.
const POLLS_PER_CHECK: u32 = 8;

/// How many yields are made before yielding counts as failed.
const MAX_YIELDS: u32 = 4;

/// After how many consecutive failures spinning pauses.
const MAX_FAILED_SPINS: u32 = 3;

/// The maximum length of a pause, in waits.
const MAX_PAUSE: u32 = 512;

/// The length of the first pause, in waits.
const FIRST_PAUSE: u32 = 8;

/// The spin history of one kind of wait.
#[derive(Clone, Copy, Debug)]
pub struct AdaptiveSpin {
    /// The awaited thread needs this core.
    shares_core: bool,
    failed_spins: u32,
    /// The length of the next pause, in waits.
    next_pause: u32,
    /// How many waits of the current pause are left.
    paused_waits: u32,
}

impl Default for AdaptiveSpin {
    fn default() -> Self {
        Self { shares_core: false, failed_spins: 0, next_pause: FIRST_PAUSE, paused_waits: 0 }
    }
}

impl AdaptiveSpin {
    /// Returns true if the awaited thread recently needed this core.
    pub fn shares_core(&self) -> bool {
        self.shares_core
    }

    /// Creates a history in which the awaited thread needs this core.
    #[cfg(test)]
    pub fn on_shared_core() -> Self {
        Self { shares_core: true, ..Self::default() }
    }

    /// Polls for a while, unless recent spins failed. Returns `None` if the caller should sleep.
    pub fn try_spin<T>(&mut self, mut ready: impl FnMut() -> Option<T>) -> Option<T> {
        if self.paused_waits > 0 {
            self.paused_waits -= 1;
            return None;
        }
        let started = Instant::now();
        let found = if self.shares_core {
            let value = yield_and_poll(&mut ready);
            value.or_else(|| {
                let value = spin(started, &mut ready);
                self.shares_core = value.is_none();
                value
            })
        } else {
            let value = spin(started, &mut ready);
            value.or_else(|| {
                let value = yield_and_poll(&mut ready);
                self.shares_core = value.is_some();
                value
            })
        };
        if found.is_some() && started.elapsed() < INTERRUPTED_AFTER {
            self.failed_spins = 0;
            self.next_pause = FIRST_PAUSE;
        } else {
            self.record_failed_spin();
        }
        found
    }

    fn record_failed_spin(&mut self) {
        self.failed_spins += 1;
        if self.failed_spins >= MAX_FAILED_SPINS {
            self.paused_waits = self.next_pause;
            self.next_pause = (self.next_pause * 2).min(MAX_PAUSE);
            // After a pause, one failure is enough to pause again.
            self.failed_spins = MAX_FAILED_SPINS - 1;
        }
    }
}

fn spin<T>(started: Instant, ready: &mut impl FnMut() -> Option<T>) -> Option<T> {
    loop {
        for _ in 0..POLLS_PER_CHECK {
            if let Some(value) = ready() {
                return Some(value);
            }
            std::hint::spin_loop();
        }
        if started.elapsed() >= SPIN_TIME {
            return None;
        }
    }
}

fn yield_and_poll<T>(ready: &mut impl FnMut() -> Option<T>) -> Option<T> {
    (0..MAX_YIELDS).find_map(|_| {
        std::thread::yield_now();
        ready()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_spins_become_rarer() {
        let mut spin = AdaptiveSpin::default();
        let mut tries = 0;
        for _ in 0..2000 {
            let mut looked = false;
            let result = spin.try_spin(|| {
                looked = true;
                None::<()>
            });
            assert_eq!(result, None);
            tries += u32::from(looked);
        }
        assert!(tries <= 3 + 8 + 4, "{tries}");
        // A successful spin ends the pauses.
        let mut waits = 0;
        while spin.try_spin(|| Some(())).is_none() {
            waits += 1;
        }
        assert!(waits <= MAX_PAUSE, "{waits}");
        assert_eq!(spin.try_spin(|| Some(7)), Some(7));
    }

    #[test]
    fn core_is_yielded_to_a_sharing_peer() {
        let mut spin = AdaptiveSpin::default();
        let began = Instant::now();
        // The value becomes available only after the core was yielded once.
        let mut polls = 0;
        let found = spin.try_spin(|| {
            polls += 1;
            (began.elapsed() >= SPIN_TIME).then_some(())
        });
        assert!(found.is_some() && polls > 1 || spin.failed_spins > 0);
        if spin.shares_core {
            // The first poll comes after a yield, not after a spin.
            let mut polls = 0;
            assert_eq!(
                spin.try_spin(|| {
                    polls += 1;
                    Some(polls)
                }),
                Some(1)
            );
        }
    }
}
