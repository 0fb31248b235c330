//! Whether to look for something again and again before sleeping until it comes.
//!
//! A sleeper needs tens of microseconds to wake, and whoever wakes it a few more; an answer from
//! another core comes within ten. Where the one that is waited for shares this core, looking only
//! keeps it from running, and what helps is to give the core away and look again. Where it is slow,
//! neither helps. Which of these it is shows in what was successful lately; and what has not paid
//! for a while is tried less and less.

use std::time::{Duration, Instant};

/// How long one look lasts.
const LOOK_FOR: Duration = Duration::from_micros(50);

/// A look that took longer was interrupted by others who need the core: it does not count as one
/// that paid.
const TOO_LONG: Duration = Duration::from_micros(500);

/// How many looks are taken between two glances at the clock.
const LOOKS_PER_CHECK: u32 = 8;

/// How often the core is given away before that is in vain.
const TURNS_GIVEN: u32 = 4;

/// After how many looks in vain in a row looking is given up for a while.
const MISSES_ALLOWED: u32 = 3;

/// The most waits for which looking is given up.
const LONGEST_REST: u32 = 512;

/// How many waits the first rest lasts.
const FIRST_REST: u32 = 8;

/// What has been learnt about the waits of one kind so far.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// What is waited for needs this core.
    shares_core: bool,
    misses: u32,
    /// How many waits the next rest lasts.
    rest: u32,
    /// How many waits are left of this one.
    resting: u32,
}

impl Default for Patience {
    fn default() -> Self {
        Self { shares_core: false, misses: 0, rest: FIRST_REST, resting: 0 }
    }
}

impl Patience {
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
    pub fn look<T>(&mut self, mut ready: impl FnMut() -> Option<T>) -> Option<T> {
        if self.resting > 0 {
            self.resting -= 1;
            return None;
        }
        let started = Instant::now();
        let found = if self.shares_core {
            let value = give_turns(&mut ready);
            value.or_else(|| {
                let value = spin(started, &mut ready);
                self.shares_core = value.is_none();
                value
            })
        } else {
            let value = spin(started, &mut ready);
            value.or_else(|| {
                let value = give_turns(&mut ready);
                self.shares_core = value.is_some();
                value
            })
        };
        if found.is_some() && started.elapsed() < TOO_LONG {
            self.misses = 0;
            self.rest = FIRST_REST;
        } else {
            self.missed();
        }
        found
    }

    fn missed(&mut self) {
        self.misses += 1;
        if self.misses >= MISSES_ALLOWED {
            self.resting = self.rest;
            self.rest = (self.rest * 2).min(LONGEST_REST);
            // One look in vain is enough to go on resting.
            self.misses = MISSES_ALLOWED - 1;
        }
    }
}

fn spin<T>(started: Instant, ready: &mut impl FnMut() -> Option<T>) -> Option<T> {
    loop {
        for _ in 0..LOOKS_PER_CHECK {
            if let Some(value) = ready() {
                return Some(value);
            }
            std::hint::spin_loop();
        }
        if started.elapsed() >= LOOK_FOR {
            return None;
        }
    }
}

fn give_turns<T>(ready: &mut impl FnMut() -> Option<T>) -> Option<T> {
    (0..TURNS_GIVEN).find_map(|_| {
        std::thread::yield_now();
        ready()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_pay_is_tried_less_and_less() {
        let mut patience = Patience::default();
        let mut tries = 0;
        for _ in 0..2000 {
            let mut looked = false;
            let look = patience.look(|| {
                looked = true;
                None::<()>
            });
            assert_eq!(look, None);
            tries += u32::from(looked);
        }
        assert!(tries <= 3 + 8 + 4, "{tries}");
        // And what pays is done.
        let mut waits = 0;
        while patience.look(|| Some(())).is_none() {
            waits += 1;
        }
        assert!(waits <= LONGEST_REST, "{waits}");
        assert_eq!(patience.look(|| Some(7)), Some(7));
    }

    #[test]
    fn whoever_shares_the_core_is_given_it() {
        let mut patience = Patience::default();
        let began = Instant::now();
        // Comes only when the core has been given away once.
        let mut looks = 0;
        let found = patience.look(|| {
            looks += 1;
            (began.elapsed() >= LOOK_FOR).then_some(())
        });
        assert!(found.is_some() && looks > 1 || patience.misses > 0);
        if patience.shares_core {
            // The first look comes after the core was given away, not after a spin.
            let mut looks = 0;
            assert_eq!(
                patience.look(|| {
                    looks += 1;
                    Some(looks)
                }),
                Some(1)
            );
        }
    }
}
