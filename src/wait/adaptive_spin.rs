//! Whether to look for something again and again before sleeping until it comes.
//!
//! A sleeper needs tens of microseconds to wake, and whoever wakes it a few more; an answer from
//! another core comes within ten. Where the one that is waited for shares this core, looking only
//! keeps it from running, and what helps is to give the core away and look again. Where it is slow,
//! neither helps. Which of these it is shows in what was successful lately; and what has not paid
//! for a while is tried less and less.

use std::time::{Duration, Instant};

/// How long one look lasts.
const SPIN_TIME: Duration = Duration::from_micros(50);

/// A look that took longer was interrupted by others who need the core: it does not count as one
/// that paid.
const INTERRUPTED_AFTER: Duration = Duration::from_micros(500);

/// How many looks are taken between two glances at the clock.
const POLLS_PER_CHECK: u32 = 8;

/// How often the core is given away before that is in vain.
const MAX_YIELDS: u32 = 4;

/// After how many looks in vain in a row looking is given up for a while.
const MAX_FAILED_SPINS: u32 = 3;

/// The most waits for which looking is given up.
const MAX_PAUSE: u32 = 512;

/// How many waits the first rest lasts.
const FIRST_PAUSE: u32 = 8;

/// What has been learnt about the waits of one kind so far.
#[derive(Clone, Copy, Debug)]
pub struct AdaptiveSpin {
    /// What is waited for needs this core.
    shares_core: bool,
    failed_spins: u32,
    /// How many waits the next rest lasts.
    next_pause: u32,
    /// How many waits are left of this one.
    paused_waits: u32,
}

impl Default for AdaptiveSpin {
    fn default() -> Self {
        Self { shares_core: false, failed_spins: 0, next_pause: FIRST_PAUSE, paused_waits: 0 }
    }
}

impl AdaptiveSpin {
    /// Whether what was waited for lately needed this very core.
    pub fn shares_core(&self) -> bool {
        self.shares_core
    }

    /// One that has learnt that it does.
    #[cfg(test)]
    pub fn on_shared_core() -> Self {
        Self { shares_core: true, ..Self::default() }
    }

    /// Looks for a while, unless that has been in vain lately. `None`: it is time to sleep.
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
            // One look in vain is enough to go on resting.
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
        let mut patience = AdaptiveSpin::default();
        let mut tries = 0;
        for _ in 0..2000 {
            let mut looked = false;
            let look = patience.try_spin(|| {
                looked = true;
                None::<()>
            });
            assert_eq!(look, None);
            tries += u32::from(looked);
        }
        assert!(tries <= 3 + 8 + 4, "{tries}");
        // And what pays is done.
        let mut waits = 0;
        while patience.try_spin(|| Some(())).is_none() {
            waits += 1;
        }
        assert!(waits <= MAX_PAUSE, "{waits}");
        assert_eq!(patience.try_spin(|| Some(7)), Some(7));
    }

    #[test]
    fn core_is_yielded_to_a_sharing_peer() {
        let mut patience = AdaptiveSpin::default();
        let began = Instant::now();
        // Comes only when the core has been given away once.
        let mut looks = 0;
        let found = patience.try_spin(|| {
            looks += 1;
            (began.elapsed() >= SPIN_TIME).then_some(())
        });
        assert!(found.is_some() && looks > 1 || patience.failed_spins > 0);
        if patience.shares_core {
            // The first look comes after the core was given away, not after a spin.
            let mut looks = 0;
            assert_eq!(
                patience.try_spin(|| {
                    looks += 1;
                    Some(looks)
                }),
                Some(1)
            );
        }
    }
}
