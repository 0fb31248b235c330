//! Between two questions to somebody who announces nothing: a device, or a library of somebody
//! else's.
//!
//! An answer that takes tens of microseconds is heard at once, for which a core that nobody else
//! wants is kept busy; one that takes long costs next to nothing. A pause is longer than it says by
//! the time that a sleeper needs to wake: 60 us or more.

use super::pause;
use crate::base::deadline::Deadline;
use std::time::{Duration, Instant};

/// How often one asks again at once.
const AT_ONCE: u32 = 16;

/// For how long one asks again after that once the core was given to whoever wants it.
const YIELD_FOR: Duration = Duration::from_micros(300);

/// The first pause; each is twice as long as the one before.
const FIRST_NAP: Duration = Duration::from_micros(20);

/// How one asks until there is an answer.
#[derive(Debug)]
pub struct Asking {
    asked: u32,
    yielding_since: Option<Instant>,
    nap: Duration,
    longest_nap: Duration,
}

impl Asking {
    /// With pauses of at most this length.
    pub const fn new(longest_nap: Duration) -> Self {
        Self { asked: 0, yielding_since: None, nap: FIRST_NAP, longest_nap }
    }

    /// There was no answer: lets as much time pass as is right before the next question, but not
    /// beyond the deadline.
    pub fn again(&mut self, deadline: &Deadline) {
        if self.asked < AT_ONCE {
            self.asked += 1;
            std::hint::spin_loop();
        } else if self.yielding_since.get_or_insert_with(Instant::now).elapsed() < YIELD_FOR {
            std::thread::yield_now();
        } else {
            pause(self.nap, deadline);
            self.nap = (self.nap * 2).min(self.longest_nap);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_asks_at_once_then_yields_then_pauses_and_never_beyond_the_deadline() {
        let longest = Duration::from_micros(50);
        let (mut asking, deadline) =
            (Asking::new(longest), Deadline::after(Duration::from_secs(20)));
        for _ in 0..AT_ONCE {
            asking.again(&deadline);
        }
        assert!(asking.yielding_since.is_none());
        while asking.nap == FIRST_NAP {
            asking.again(&deadline);
        }
        let began = asking.yielding_since.expect("it has yielded");
        assert!(began.elapsed() >= YIELD_FOR + FIRST_NAP);
        asking.again(&deadline);
        assert_eq!(asking.nap, longest);
        let mut late = Asking { nap: Duration::from_secs(3600), ..asking };
        late.again(&Deadline::after(Duration::from_millis(1)));
        assert!(began.elapsed() < Duration::from_secs(600));
    }
}
