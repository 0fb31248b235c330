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
const IMMEDIATE_TRIES: u32 = 16;

/// For how long one asks again after that once the core was given to whoever wants it.
const YIELD_FOR: Duration = Duration::from_micros(300);

/// The first pause; each is twice as long as the one before.
const FIRST_SLEEP: Duration = Duration::from_micros(20);

/// How one asks until there is an answer.
#[derive(Debug)]
pub struct PollBackoff {
    tries: u32,
    yielding_since: Option<Instant>,
    next_sleep: Duration,
    max_sleep: Duration,
}

impl PollBackoff {
    /// With pauses of at most this length.
    pub const fn new(max_sleep: Duration) -> Self {
        Self { tries: 0, yielding_since: None, next_sleep: FIRST_SLEEP, max_sleep }
    }

    /// There was no answer: lets as much time pass as is right before the next question, but not
    /// beyond the deadline.
    pub fn wait_before_retry(&mut self, deadline: &Deadline) {
        if self.tries < IMMEDIATE_TRIES {
            self.tries += 1;
            std::hint::spin_loop();
        } else if self.yielding_since.get_or_insert_with(Instant::now).elapsed() < YIELD_FOR {
            std::thread::yield_now();
        } else {
            pause(self.next_sleep, deadline);
            self.next_sleep = (self.next_sleep * 2).min(self.max_sleep);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_spins_yields_sleeps_and_respects_deadline() {
        let longest = Duration::from_micros(50);
        let (mut asking, deadline) =
            (PollBackoff::new(longest), Deadline::after(Duration::from_secs(20)));
        for _ in 0..IMMEDIATE_TRIES {
            asking.wait_before_retry(&deadline);
        }
        assert!(asking.yielding_since.is_none());
        while asking.next_sleep == FIRST_SLEEP {
            asking.wait_before_retry(&deadline);
        }
        let began = asking.yielding_since.expect("it has yielded");
        assert!(began.elapsed() >= YIELD_FOR + FIRST_SLEEP);
        asking.wait_before_retry(&deadline);
        assert_eq!(asking.next_sleep, longest);
        let mut late = PollBackoff { next_sleep: Duration::from_secs(3600), ..asking };
        late.wait_before_retry(&Deadline::after(Duration::from_millis(1)));
        assert!(began.elapsed() < Duration::from_secs(600));
    }
}
