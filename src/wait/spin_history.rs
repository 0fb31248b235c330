//! Whether it pays for a thread to spin: not where what it waits for needs the core that it spins
//! on.
//!
//! Ranks that have a core each spin. But others may want the cores too, and then the kernel may put
//! two ranks on one of them, where each spins for as long as it may before the other has its turn.
//! That shows: a spin was in vain, and to give the core away once or twice was not. Then spins are
//! left out in some of the next waits, in more of them each time that it shows again; a spin that
//! pays ends that.

use std::cell::Cell;

/// How many waits the first rest lasts, and the longest.
const FIRST_PAUSE: u32 = 16;
const MAX_PAUSE: u32 = 1024;

/// Up to how many turns given away are few: who needs this core has it after one, or after one of
/// somebody else's.
const FEW_YIELDS: u32 = 2;

#[derive(Clone, Copy, Debug)]
struct SpinHistory {
    /// How many waits the next rest lasts.
    next_pause: u32,
    /// How many are left of this one.
    paused_waits: u32,
}

thread_local! {
    static SPIN_HISTORY: Cell<SpinHistory> = const { Cell::new(SpinHistory { next_pause: FIRST_PAUSE, paused_waits: 0 }) };
}

/// Whether the thread should spin in the wait that begins.
pub(super) fn may_spin() -> bool {
    let habit = SPIN_HISTORY.get();
    if habit.paused_waits > 0 {
        SPIN_HISTORY.set(SpinHistory { paused_waits: habit.paused_waits - 1, ..habit });
    }
    habit.paused_waits == 0
}

/// A spin has found what it looked for.
pub(super) fn record_success() {
    SPIN_HISTORY.set(SpinHistory { next_pause: FIRST_PAUSE, paused_waits: 0 });
}

/// A spin was in vain, and then it came after so many turns given away.
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
        // Somebody else was slow, which says nothing.
        record_failed_spin(FEW_YIELDS + 1);
        assert_eq!(spins(10), 10);
        record_failed_spin(1);
        assert_eq!(spins(FIRST_PAUSE), 0);
        assert_eq!(spins(1), 1);
        record_failed_spin(FEW_YIELDS);
        assert_eq!(spins(2 * FIRST_PAUSE), 0);
        (0..20).for_each(|_| record_failed_spin(1));
        assert_eq!(spins(MAX_PAUSE), 0);
        // It has the core for itself again.
        assert_eq!(spins(1), 1);
        record_success();
        assert_eq!(spins(10), 10);
        record_failed_spin(1);
        assert_eq!(spins(FIRST_PAUSE + 1), 1);
    }
}
