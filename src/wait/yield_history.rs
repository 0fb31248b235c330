//! The history of yields: decides whether a waiter yields the core before it sleeps.
//!
//! A yield lets an awaited thread on the same core run. But a thread that yields goes to the end
//! of the line. If threads of other programs compute on the core, each of them first uses its time
//! slice of some milliseconds. A thread that sleeps and is woken goes to the front. So after a
//! long yield, a pause begins: the next 16 waits of the thread sleep at once. After the pause, the
//! thread tries again, and each further long yield doubles the pause, up to 1024 waits. A yield of
//! normal length ends the series.

use super::growing_pause::GrowingPause;
use std::cell::Cell;
use std::time::Duration;

/// A yield of this length means that another thread has used its time slice. The yields between
/// ranks that only wait for each other take a few microseconds each.
const LONG_YIELD: Duration = Duration::from_micros(700);

thread_local! {
    static PAUSE: Cell<GrowingPause<16>> = const { Cell::new(GrowingPause::NONE) };
}

/// Returns true if the thread should yield in the wait that starts.
pub(super) fn may_yield() -> bool {
    let mut pause = PAUSE.get();
    let may_yield = pause.begin_wait();
    if !may_yield {
        PAUSE.set(pause);
    }
    may_yield
}

/// Records the length of a yield.
pub(super) fn record(length: Duration) {
    if length < LONG_YIELD {
        PAUSE.set(GrowingPause::NONE);
        return;
    }
    let mut pause = PAUSE.get();
    pause.begin();
    PAUSE.set(pause);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many of the next waits sleep at once.
    fn skipped_waits() -> usize {
        (0..5000).take_while(|_| !may_yield()).count()
    }

    #[test]
    fn long_yields_begin_pauses_that_grow() {
        assert_eq!(skipped_waits(), 0);
        let lengths = [(); 8].map(|()| {
            record(LONG_YIELD);
            skipped_waits()
        });
        assert_eq!(lengths, [16, 32, 64, 128, 256, 512, 1024, 1024]);
        record(Duration::from_micros(3));
        assert_eq!(skipped_waits(), 0);
        record(LONG_YIELD);
        assert_eq!(skipped_waits(), 16);
    }
}
