//! The one way in which the library waits.
//!
//! A wait watches any number of things at once (lines in shared memory, flags, later sockets), so
//! it never sleeps on one of them. It sleeps on its *doorbell*, which whoever changes something
//! rings. Every wait has a deadline and looks at an abort condition; there is no other blocking
//! primitive in the library (the service thread's poll is ended by its own wake-up socket).
//!
//! Knows atomics, futexes and clocks; not what is being waited for.

pub mod asking;
pub mod bell;
mod habit;
pub mod io;
pub mod nudge;
pub mod patience;
pub mod service;
pub mod signal;
pub mod watch;
mod word;

use crate::base::deadline::Deadline;
use crate::base::error::Error;
use crate::base::spin::look;
use crate::sys::thread;
use bell::Bell;
use std::time::{Duration, Instant};

/// How many looks a wait takes before it checks deadline and abort again.
const LOOKS_PER_CHECK: u32 = 1000;

/// How many looks it takes at first without a pause between them: a pause lasts as long as a cache
/// line needs from core to core.
const FIRST_LOOKS: u32 = 100;

/// How many of them last about as long as two context switches.
const LOOKS_FOR_A_TURN: u32 = 100;

/// How long a wait keeps yielding the core before it sleeps.
const YIELD_FOR: Duration = Duration::from_micros(1000);

/// Why a wait ended without what it waited for.
#[derive(Debug)]
pub enum Interrupt {
    /// The deadline passed.
    Deadline,
    /// The abort condition holds.
    Halted(Error),
}

/// How a wait behaves before it sleeps.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// How long to spin on the core first. A sleeper needs tens of microseconds to wake, so that it
    /// pays to spin for longer than that.
    pub spin: Duration,
    /// More threads than cores want to run, and spinning would keep the awaited one from it: give
    /// the core away after each look.
    pub crowded: bool,
}

impl Pace {
    /// For waits that may well be long: sleep soon.
    pub const PATIENT: Self = Self { spin: Duration::ZERO, crowded: true };
}

/// Waits until `ready` gives a value, the deadline passes, or `halted` gives an error. What became
/// ready before the halt still counts: `ready` has the last look.
///
/// `ready` must depend only on memory whose writers ring `bell` after they have written it.
///
/// # Errors
/// What ended the wait instead.
pub fn until<T>(
    bell: &Bell,
    pace: Pace,
    deadline: &Deadline,
    halted: impl Fn() -> Option<Error>,
    ready: impl FnMut() -> Option<T>,
) -> Result<T, Interrupt> {
    until_watched(bell, pace, deadline, halted, ready, || None)
}

/// The same, of which somebody is told that it lasts: `watch` is asked each time before the wait
/// sleeps, and says for how long it may at most.
///
/// # Errors
/// As [`until`].
pub fn until_watched<T>(
    bell: &Bell,
    pace: Pace,
    deadline: &Deadline,
    halted: impl Fn() -> Option<Error>,
    mut ready: impl FnMut() -> Option<T>,
    mut watch: impl FnMut() -> Option<Duration>,
) -> Result<T, Interrupt> {
    if let Some(value) = ready() {
        return Ok(value);
    }
    if let Some(value) = look_around(pace, deadline, &halted, &mut ready) {
        return Ok(value);
    }
    loop {
        if let Some(error) = halted() {
            return ready().ok_or(Interrupt::Halted(error));
        }
        let left = deadline.left();
        if left.is_zero() {
            return Err(Interrupt::Deadline);
        }
        let limit = watch().map_or(left, |most| left.min(most));
        if let Some(value) = bell.doze(limit, || halted().is_none(), &mut ready) {
            return Ok(value);
        }
    }
}

/// Gives the core away, so often at most, and looks each time that it has it back. Where nobody
/// wants the core for what is waited for, it looks first, so many times that giving it away and
/// having it back would take no longer. What a look has found. For a few turns, which whoever wants
/// the core next takes: a wait that lasts is [`until`]'s.
pub fn give_turns<T>(
    turns: u32,
    is_wanted: impl Fn() -> bool,
    mut ready: impl FnMut() -> Option<T>,
) -> Option<T> {
    if !PATIENT {
        return None;
    }
    (0..turns).find_map(|_| {
        let found = if is_wanted() { None } else { look(LOOKS_FOR_A_TURN, &mut ready) };
        found.or_else(|| {
            std::thread::yield_now();
            ready()
        })
    })
}

/// The core that this thread is on, as far as that can be said.
pub fn core() -> Option<usize> {
    thread::core()
}

/// Lets some time pass, but not beyond the deadline: between two tries of something that nobody
/// announces.
pub fn pause(time: Duration, deadline: &Deadline) {
    let end = deadline.capped(time);
    // Nobody rings; the time is what ends it.
    let bell = Bell::default();
    while !end.has_passed() {
        let ticket = bell.prepare_to_sleep();
        bell.sleep(ticket, end.left());
        bell.awake();
    }
}

/// The model checker decides who runs; looking again and again would only multiply its work.
const PATIENT: bool = cfg!(not(loom));

/// What a wait does before it sleeps: it looks, first with the core for itself, then giving it away
/// after each look.
fn look_around<T>(
    pace: Pace,
    deadline: &Deadline,
    halted: &impl Fn() -> Option<Error>,
    ready: &mut impl FnMut() -> Option<T>,
) -> Option<T> {
    let mut spins = !pace.crowded && PATIENT;
    if spins {
        // Most waits are over before the clock, which costs as much as many looks, is looked at for
        // the first time.
        if let Some(value) = look(FIRST_LOOKS, &mut *ready) {
            return Some(value);
        }
        spins = habit::may_spin();
    }
    if spins && let Some(value) = spin(pace, halted, ready) {
        habit::has_paid();
        return Some(value);
    }
    let (value, turns) = give_way(deadline, halted, ready)?;
    if spins {
        habit::was_in_vain(turns);
    }
    Some(value)
}

/// Looks in a tight loop for a while. A halt ends the loop; `until` then says why.
fn spin<T>(
    pace: Pace,
    halted: &impl Fn() -> Option<Error>,
    ready: &mut impl FnMut() -> Option<T>,
) -> Option<T> {
    let mut started = None;
    loop {
        for _ in 0..LOOKS_PER_CHECK {
            if let Some(value) = ready() {
                return Some(value);
            }
            std::hint::spin_loop();
        }
        let started = started.get_or_insert_with(Instant::now);
        if halted().is_some() || started.elapsed() >= pace.spin {
            return None;
        }
    }
}

/// Looks, and gives the core to whoever wants it before each look; also says how often it did.
fn give_way<T>(
    deadline: &Deadline,
    halted: &impl Fn() -> Option<Error>,
    ready: &mut impl FnMut() -> Option<T>,
) -> Option<(T, u32)> {
    let started = Instant::now();
    let limit = if PATIENT { YIELD_FOR.min(deadline.left()) } else { Duration::ZERO };
    let mut turns = 0;
    while started.elapsed() < limit && halted().is_none() {
        std::thread::yield_now();
        turns += 1;
        if let Some(value) = ready() {
            return Some((value, turns));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::error::ErrorKind;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    const PACE: Pace = Pace { spin: Duration::from_micros(20), crowded: false };

    #[test]
    fn turns_end_with_what_they_are_given_for() {
        let looks = std::cell::Cell::new(0);
        let look = |at| {
            looks.set(looks.get() + 1);
            (looks.get() == at).then_some(at)
        };
        assert!(give_turns(3, || true, || look(2)) == Some(2) && looks.get() == 2);
        assert!(give_turns(3, || true, || look(9)).is_none() && looks.get() == 5);
        assert!(give_turns(0, || true, || look(6)).is_none() && looks.get() == 5);
    }

    #[test]
    fn a_core_that_nobody_wants_is_kept_for_a_while() {
        let each = LOOKS_FOR_A_TURN + 1;
        let looks = std::cell::Cell::new(0);
        let look = |at| {
            looks.set(looks.get() + 1);
            (looks.get() == at).then_some(())
        };
        assert!(give_turns(2, || false, || look(each + 3)).is_some() && looks.get() == each + 3);
        looks.set(0);
        assert!(give_turns(2, || false, || look(0)).is_none() && looks.get() == 2 * each);
        looks.set(0);
        // Somebody comes for it.
        let is_wanted = || looks.get() > 0;
        assert!(give_turns(2, is_wanted, || look(0)).is_none() && looks.get() == each + 1);
    }

    #[test]
    fn a_deadline_ends_the_wait_and_an_abort_does_too() {
        let bell = Bell::default();
        let never = || None::<()>;
        let outcome = until(&bell, PACE, &Deadline::after_ms(5), || None, never);
        assert!(matches!(outcome, Err(Interrupt::Deadline)));
        let halted = || Some(Error::new(ErrorKind::Aborted, "stop"));
        let outcome = until(&bell, PACE, &Deadline::never(), halted, never);
        assert!(matches!(outcome, Err(Interrupt::Halted(e)) if e.kind() == ErrorKind::Aborted));
    }

    #[test]
    fn every_ring_is_heard() {
        // Two threads hand a counter back and forth; a lost wake-up would end in the deadline.
        let shared = Arc::new((AtomicU64::new(0), Bell::default(), Bell::default()));
        let other = Arc::clone(&shared);
        let pace = Pace { spin: Duration::ZERO, crowded: true };
        let rounds = 2000;
        let echo = std::thread::Builder::new()
            .spawn(move || {
                for round in 0..rounds {
                    let ready = || (other.0.load(Ordering::Acquire) == 2 * round + 1).then_some(());
                    until(&other.2, pace, &Deadline::after_ms(20_000), || None, ready).unwrap();
                    other.0.store(2 * round + 2, Ordering::Release);
                    other.1.ring();
                }
            })
            .unwrap();
        for round in 0..rounds {
            shared.0.store(2 * round + 1, Ordering::Release);
            shared.2.ring();
            let ready = || (shared.0.load(Ordering::Acquire) == 2 * round + 2).then_some(());
            until(&shared.1, pace, &Deadline::after_ms(20_000), || None, ready).unwrap();
        }
        echo.join().unwrap();
    }
}
