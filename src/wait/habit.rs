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
const FIRST_REST: u32 = 16;
const LONGEST_REST: u32 = 1024;

/// Up to how many turns given away are few: who needs this core has it after one, or after one of
/// somebody else's.
const FEW_TURNS: u32 = 2;

#[derive(Clone, Copy, Debug)]
struct Habit {
    /// How many waits the next rest lasts.
    rest: u32,
    /// How many are left of this one.
    resting: u32,
}

thread_local! {
    static HABIT: Cell<Habit> = const { Cell::new(Habit { rest: FIRST_REST, resting: 0 }) };
}

/// Whether the thread should spin in the wait that begins.
pub(super) fn may_spin() -> bool {
    let habit = HABIT.get();
    if habit.resting > 0 {
        HABIT.set(Habit { resting: habit.resting - 1, ..habit });
    }
    habit.resting == 0
}

/// A spin has found what it looked for.
pub(super) fn has_paid() {
    HABIT.set(Habit { rest: FIRST_REST, resting: 0 });
}

/// A spin was in vain, and then it came after so many turns given away.
pub(super) fn was_in_vain(turns: u32) {
    if turns <= FEW_TURNS {
        let rest = HABIT.get().rest;
        HABIT.set(Habit { rest: (2 * rest).min(LONGEST_REST), resting: rest });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_shares_the_core_spins_less_and_less() {
        let spins = |waits: u32| (0..waits).filter(|_| may_spin()).count();
        assert_eq!(spins(10), 10);
        // Somebody else was slow, which says nothing.
        was_in_vain(FEW_TURNS + 1);
        assert_eq!(spins(10), 10);
        was_in_vain(1);
        assert_eq!(spins(FIRST_REST), 0);
        assert_eq!(spins(1), 1);
        was_in_vain(FEW_TURNS);
        assert_eq!(spins(2 * FIRST_REST), 0);
        (0..20).for_each(|_| was_in_vain(1));
        assert_eq!(spins(LONGEST_REST), 0);
        // It has the core for itself again.
        assert_eq!(spins(1), 1);
        has_paid();
        assert_eq!(spins(10), 10);
        was_in_vain(1);
        assert_eq!(spins(FIRST_REST + 1), 1);
    }
}
