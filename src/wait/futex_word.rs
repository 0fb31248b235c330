//! A word on which threads sleep: a futex, or a model of a futex for the model checker loom.

#[cfg(not(loom))]
use crate::sys::futex::{self, FutexScope};
#[cfg(loom)]
use loom::sync::{Condvar, Mutex};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The futex word. All zero bytes are a valid word of value 0. Several processes may share it.
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

    /// Increments the value, and wakes all threads that sleep on this word.
    pub(super) fn bump(&self) {
        self.0.fetch_add(1, Ordering::Release);
        futex::wake_all(&self.0, FutexScope::Host);
    }

    /// Returns immediately if the value is not `expected`. Otherwise sleeps until
    /// [`FutexWord::bump`] is called, but at most for `limit`. May return early.
    #[allow(clippy::disallowed_methods, reason = "the wait of doorbells, with a time limit")]
    pub(super) fn sleep(&self, expected: u32, limit: Duration) {
        futex::wait(&self.0, expected, limit, FutexScope::Host);
    }
}

/// The model of a futex. The kernel compares the value and adds the sleeper to its queue under a
/// lock, which a waker also takes; here, the mutex is that lock. The model has no time limit: if a
/// thread sleeps forever, a wake-up was lost, and loom reports it.
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
