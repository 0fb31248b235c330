//! [`PollBackoff`]: the delays between polls of a source that sends no notification, such as a
//! device or a foreign library. A series of polls has three phases:
//!
//! 1. The first 16 polls follow each other without a delay.
//! 2. For 300 us, each poll yields the core to other threads. Thus the polls find an
//!    answer without delay, and use the core only while no other thread needs it.
//! 3. After that, the thread sleeps between polls, so that a long wait costs little. Each sleep is
//!    twice as long as the previous sleep, up to a maximum. A sleeper needs 60 us or more to wake,
//!    so each sleep lasts that much longer than requested.

use super::{blocked_thread, pause};
use crate::base::deadline::Deadline;
use std::time::{Duration, Instant};

/// The number of polls that follow each other without a delay.
const IMMEDIATE_TRIES: u32 = 16;

/// The length of the yield phase. The answer of a device comes within this time, or much later.
const YIELD_TIME: Duration = Duration::from_micros(300);

/// The length of the first sleep.
const FIRST_SLEEP: Duration = Duration::from_micros(20);

/// The state of one series of polls.
#[derive(Debug)]
pub struct PollBackoff {
    tries: u32,
    yielding_since: Option<Instant>,
    next_sleep: Duration,
    max_sleep: Duration,
}

impl PollBackoff {
    /// Creates a backoff whose sleeps last at most `max_sleep`.
    pub const fn new(max_sleep: Duration) -> Self {
        Self { tries: 0, yielding_since: None, next_sleep: FIRST_SLEEP, max_sleep }
    }

    /// Waits before the next poll: spins, yields or sleeps, but not beyond the deadline. Call this
    /// after a poll without an answer.
    pub fn wait_before_retry(&mut self, deadline: &Deadline) {
        if self.tries < IMMEDIATE_TRIES {
            self.tries += 1;
            return std::hint::spin_loop();
        }
        if self.yielding_since.get_or_insert_with(Instant::now).elapsed() < YIELD_TIME {
            std::thread::yield_now();
        } else {
            blocked_thread::record_poll();
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
        assert!(began.elapsed() >= YIELD_TIME + FIRST_SLEEP);
        asking.wait_before_retry(&deadline);
        assert_eq!(asking.next_sleep, longest);
        let mut late = PollBackoff { next_sleep: Duration::from_secs(3600), ..asking };
        late.wait_before_retry(&Deadline::after(Duration::from_millis(1)));
        assert!(began.elapsed() < Duration::from_secs(600));
    }
}
