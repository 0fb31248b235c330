//! The history of spins: decides whether a waiter spins before it yields or sleeps.
//!
//! An answer from another core arrives within ten microseconds, so a short spin is worthwhile.
//! There are two exceptions:
//!
//! - The awaited thread needs this core. Spinning keeps that thread from running.
//! - The awaited thread is slow. The spin is wasted.
//!
//! When spins have failed, a pause begins ([`GrowingPause`]): the next 16 waits skip the spin. If a
//! spin fails again after the pause, the next pause has 32 waits, and so on up to 1024. A
//! successful spin ends the series. For sockets, the pauses have 8 to 512 waits.
//!
//! [`wait_until`](super::wait_until) has one history per thread. A wait on a socket has a history
//! of its own ([`AdaptiveSpin`]), because a different thread answers there.

use super::growing_pause::GrowingPause;
use super::policy::{SpinLimit, spin_for, yield_if_short};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// The length of a thread's first pause, in waits.
const FIRST_PAUSE: u32 = 16;
/// The length of a socket's first pause, in waits.
const FIRST_SOCKET_PAUSE: u32 = 8;

thread_local! {
    static THREAD_PAUSE: Cell<GrowingPause<FIRST_PAUSE>> = const { Cell::new(GrowingPause::NONE) };
}

/// If the awaited value comes after at most this number of yields, the awaited thread shares this
/// core. It ran during the first yield, or an unrelated thread ran first and the awaited thread ran
/// during the second yield.
const FEW_YIELDS: u32 = 2;

/// Returns true if the thread should spin in the wait that starts.
pub(super) fn may_spin() -> bool {
    let mut pause = THREAD_PAUSE.get();
    let may_spin = pause.begin_wait();
    if !may_spin {
        THREAD_PAUSE.set(pause);
    }
    may_spin
}

/// Records that a spin succeeded.
pub(super) fn record_success() {
    THREAD_PAUSE.set(GrowingPause::NONE);
}

/// Records that a spin failed, and that the value was then found after `yields` yields. After one
/// or two yields, a pause begins, because the awaited thread shares this core. For example, every
/// rank has a core of its own, but other threads also need cores, and the kernel places two ranks
/// on one core. Then a spin fails, and one or two yields succeed.
pub(super) fn record_failed_spin(yields: u32) {
    if yields <= FEW_YIELDS {
        let mut pause = THREAD_PAUSE.get();
        pause.begin();
        THREAD_PAUSE.set(pause);
    }
}

/// The length of a spin on a socket.
const SOCKET_SPIN_TIME: Duration = Duration::from_micros(50);

/// A spin that took longer than this does not count as a success, because other threads used the
/// core during the spin.
const INTERRUPTED_AFTER: Duration = Duration::from_micros(500);

/// The number of polls between two reads of the clock in a spin on a socket. Each poll is a system
/// call, which costs more than a read of the clock.
const SOCKET_POLLS_PER_CHECK: u32 = 8;

/// The number of yields after which yielding has failed.
const MAX_YIELDS: u32 = 4;

/// The number of consecutive failures after which a pause begins.
const MAX_FAILED_SPINS: u32 = 3;

/// The spin history of one kind of wait on a socket.
#[derive(Clone, Copy, Debug)]
pub struct AdaptiveSpin {
    /// Whether the awaited thread recently needed this core.
    shares_core: bool,
    failed_spins: u32,
    pause: GrowingPause<FIRST_SOCKET_PAUSE>,
}

impl Default for AdaptiveSpin {
    fn default() -> Self {
        Self { shares_core: false, failed_spins: 0, pause: GrowingPause::NONE }
    }
}

impl AdaptiveSpin {
    /// Returns true if the awaited thread recently needed this core.
    pub fn shares_core(&self) -> bool {
        self.shares_core
    }

    /// Creates a history in which the awaited thread needs this core.
    #[cfg(test)]
    pub fn on_shared_core() -> Self {
        Self { shares_core: true, ..Self::default() }
    }

    /// Polls for a short time, unless a pause after failed spins is running. If the awaited thread
    /// needs this core, yields first and spins after that; otherwise spins first. Returns `None` if
    /// the caller should sleep.
    pub fn try_spin<T>(&mut self, mut ready: impl FnMut() -> Option<T>) -> Option<T> {
        if !self.pause.begin_wait() {
            return None;
        }
        let started = Instant::now();
        let limit = SpinLimit {
            spin_time: SOCKET_SPIN_TIME,
            started: Some(started),
            polls_per_check: SOCKET_POLLS_PER_CHECK,
        };
        let found = if self.shares_core {
            yield_if_short(MAX_YIELDS, || true, &mut ready).or_else(|| {
                let value = spin_for(limit, || false, &mut ready);
                self.shares_core = value.is_none();
                value
            })
        } else {
            spin_for(limit, || false, &mut ready).or_else(|| {
                let value = yield_if_short(MAX_YIELDS, || true, &mut ready);
                self.shares_core = value.is_some();
                value
            })
        };
        if found.is_some() && started.elapsed() < INTERRUPTED_AFTER {
            self.failed_spins = 0;
            self.pause = GrowingPause::NONE;
        } else {
            self.record_failed_spin();
        }
        found
    }

    fn record_failed_spin(&mut self) {
        self.failed_spins += 1;
        if self.failed_spins >= MAX_FAILED_SPINS {
            self.pause.begin();
            // One failure after this pause is enough for the next pause.
            self.failed_spins = MAX_FAILED_SPINS - 1;
        }
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
        assert_eq!(spins(GrowingPause::<FIRST_PAUSE>::MAX), 0);
        // The thread has its core for itself again.
        assert_eq!(spins(1), 1);
        record_success();
        assert_eq!(spins(10), 10);
        record_failed_spin(1);
        assert_eq!(spins(FIRST_PAUSE + 1), 1);
    }

    #[test]
    fn failed_spins_become_rarer() {
        let mut spin = AdaptiveSpin::default();
        let mut tries = 0;
        for _ in 0..2000 {
            let mut looked = false;
            let result = spin.try_spin(|| {
                looked = true;
                None::<()>
            });
            assert_eq!(result, None);
            tries += u32::from(looked);
        }
        assert!(tries <= 3 + 8 + 4, "{tries}");
        // A successful spin ends the pauses.
        let mut waits = 0;
        while spin.try_spin(|| Some(())).is_none() {
            waits += 1;
        }
        assert!(waits <= GrowingPause::<FIRST_SOCKET_PAUSE>::MAX, "{waits}");
        assert_eq!(spin.try_spin(|| Some(7)), Some(7));
    }

    #[test]
    fn core_is_yielded_to_a_sharing_peer() {
        let mut spin = AdaptiveSpin::default();
        let began = Instant::now();
        // The value becomes available only after the core was yielded once.
        let mut polls = 0;
        let found = spin.try_spin(|| {
            polls += 1;
            (began.elapsed() >= SOCKET_SPIN_TIME).then_some(())
        });
        assert!(found.is_some() && polls > 1 || spin.failed_spins > 0);
        if spin.shares_core {
            // The first poll comes after a yield, not after a spin.
            let mut polls = 0;
            assert_eq!(
                spin.try_spin(|| {
                    polls += 1;
                    Some(polls)
                }),
                Some(1)
            );
        }
    }
}
