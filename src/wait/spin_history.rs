//! The spin history of a thread: disables spinning if the awaited thread needs the core on which
//! this thread spins.
//!
//! Ranks with one core each spin. But other threads may need the cores too, and then the kernel may
//! place two ranks on one core. Each of them spins for its full spin time before the other one
//! runs. The sign of this case: a spin failed, and one or two yields succeeded. After that, some of
//! the next waits skip the spin, and more of them at each repetition. A successful spin ends the
//! pause.

use std::cell::Cell;

/// The length of the first pause and of the longest pause, in waits.
const FIRST_PAUSE: u32 = 16;
const MAX_PAUSE: u32 = 1024;

/// A success after at most this number of yields shows a shared core: the awaited thread runs after
/// one yield, or after one yield to an unrelated thread.
const FEW_YIELDS: u32 = 2;

#[derive(Clone, Copy, Debug)]
struct SpinHistory {
    /// The length of the next pause, in waits.
    next_pause: u32,
    /// How many waits of the current pause are left.
    paused_waits: u32,
}

thread_local! {
    static SPIN_HISTORY: Cell<SpinHistory> = const { Cell::new(SpinHistory { next_pause: FIRST_PAUSE, paused_waits: 0 }) };
}

/// Returns true if the thread should spin in the wait that starts.
pub(super) fn may_spin() -> bool {
    let habit = SPIN_HISTORY.get();
    if habit.paused_waits > 0 {
        SPIN_HISTORY.set(SpinHistory { paused_waits: habit.paused_waits - 1, ..habit });
    }
    habit.paused_waits == 0
}

/// Records that a spin succeeded.
pub(super) fn record_success() {
    SPIN_HISTORY.set(SpinHistory { next_pause: FIRST_PAUSE, paused_waits: 0 });
}

/// Records that a spin failed, and that the value was then found after `yields` yields.
pub(super) fn record_failed_spin(yields: u32) {
    if yields <= FEW_YIELDS {
        let rest = SPIN_HISTORY.get().next_pause;
        SPIN_HISTORY.set(SpinHistory { next_pause: (2 * rest).min(MAX_PAUSE), paused_waits: rest });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_core_reduces_spinning() {
        let spins = |waits: u32| (0..waits).filter(|_| may_spin()).count();
        assert_eq!(spins(10), 10);
        // Another thread was slow, which is no sign of a shared core.
        record_failed_spin(FEW_YIELDS + 1);
        assert_eq!(spins(10), 10);
        record_failed_spin(1);
        assert_eq!(spins(FIRST_PAUSE), 0);
        assert_eq!(spins(1), 1);
        record_failed_spin(FEW_YIELDS);
        assert_eq!(spins(2 * FIRST_PAUSE), 0);
        (0..20).for_each(|_| record_failed_spin(1));
        assert_eq!(spins(MAX_PAUSE), 0);
        // The thread has its core for itself again.
        assert_eq!(spins(1), 1);
        record_success();
        assert_eq!(spins(10), 10);
        record_failed_spin(1);
        assert_eq!(spins(FIRST_PAUSE + 1), 1);
    }
}
