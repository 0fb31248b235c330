//! Whether to look for something again and again before sleeping until it comes.
//!
//! A sleeper needs tens of microseconds to wake, and whoever wakes it a few more; an answer from another core
//! comes within ten. But looking is in vain where the one that is waited for needs this very core, or is slow,
//! and then it only takes time from others. So it is tried, and given up for longer and longer while it does
//! not pay.

use std::time::{Duration, Instant};

/// How long one look lasts.
const LOOK_FOR: Duration = Duration::from_micros(50);

/// How many looks are taken between two glances at the clock.
const LOOKS_PER_CHECK: u32 = 8;

/// After how many looks in vain in a row looking is given up for a while.
const MISSES_ALLOWED: u32 = 3;

/// The most waits for which looking is given up.
const LONGEST_REST: u32 = 512;

/// What has been learnt about the waits of one kind so far.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    misses: u32,
    /// How many waits the next rest lasts.
    rest: u32,
    /// How many waits are left of this one.
    resting: u32,
}

impl Default for Patience {
    fn default() -> Self {
        Self { misses: 0, rest: 8, resting: 0 }
    }
}

impl Patience {
    /// Looks for a while, unless that has been in vain lately. `None`: it is time to sleep.
    pub fn look<T>(&mut self, mut ready: impl FnMut() -> Option<T>) -> Option<T> {
        if self.resting > 0 {
            self.resting -= 1;
            return None;
        }
        let started = Instant::now();
        loop {
            for _ in 0..LOOKS_PER_CHECK {
                if let Some(value) = ready() {
                    *self = Self::default();
                    return Some(value);
                }
                std::hint::spin_loop();
            }
            if started.elapsed() >= LOOK_FOR {
                self.missed();
                return None;
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_pay_is_tried_less_and_less() {
        let mut patience = Patience::default();
        let mut tries = 0;
        for _ in 0..2000 {
            let mut looked = false;
            assert_eq!(
                patience.look(|| {
                    looked = true;
                    None::<()>
                }),
                None
            );
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
}
