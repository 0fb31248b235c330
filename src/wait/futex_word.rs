//! A word to sleep on: a futex, or a model of a futex for the model checker loom.

#[cfg(not(loom))]
use crate::sys::futex::{self, FutexScope};
#[cfg(loom)]
use loom::sync::{Condvar, Mutex};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The futex word. All zero bytes mean 0; processes may share it.
#[cfg(not(loom))]
#[derive(Debug, Default)]
#[repr(transparent)]
pub(super) struct FutexWord(AtomicU32);

#[cfg(not(loom))]
impl FutexWord {
    /// Returns the value.
    pub(super) fn load(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// Increments the value, and wakes all threads that sleep on the previous value.
    pub(super) fn bump(&self) {
        self.0.fetch_add(1, Ordering::Release);
        futex::wake_all(&self.0, FutexScope::Host);
    }

    /// Sleeps while the value is `expected`, until it changes, or for `limit`; may return early.
    #[allow(clippy::disallowed_methods, reason = "the wait of doorbells, with a time limit")]
    pub(super) fn sleep(&self, expected: u32, limit: Duration) {
        futex::wait(&self.0, expected, limit, FutexScope::Host);
    }
}

/// The kernel compares and queues under a lock that the waker takes too. The model has no time
/// limit: if it sleeps forever, a wake-up was lost.
#[cfg(loom)]
#[derive(Debug, Default)]
pub(super) struct FutexWord(Mutex<u32>, Condvar);

#[cfg(loom)]
#[allow(clippy::unwrap_used, reason = "no thread panics while it holds the lock")]
impl FutexWord {
    pub(super) fn load(&self) -> u32 {
        *self.0.lock().unwrap()
    }

    pub(super) fn bump(&self) {
        *self.0.lock().unwrap() += 1;
        self.1.notify_all();
    }

    pub(super) fn sleep(&self, expected: u32, _limit: Duration) {
        let word = self.0.lock().unwrap();
        if *word == expected {
            drop(self.1.wait(word).unwrap());
        }
    }
}
