//! A word to sleep on: a futex, or a model of a futex for the model checker loom.

#[cfg(not(loom))]
pub(super) use futex::FutexWord;
#[cfg(loom)]
pub(super) use model::FutexWord;

#[cfg(not(loom))]
mod futex {
    use crate::sys::futex::{self, FutexScope};
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    /// The futex word. All zero bytes mean 0; processes may share it.
    #[derive(Debug, Default)]
    #[repr(transparent)]
    pub(in crate::wait) struct FutexWord(AtomicU32);

    impl FutexWord {
        /// Returns the value.
        pub(in crate::wait) fn load(&self) -> u32 {
            self.0.load(Ordering::Acquire)
        }

        /// Increments the value, and wakes all threads that sleep on the previous value.
        pub(in crate::wait) fn bump(&self) {
            self.0.fetch_add(1, Ordering::Release);
            futex::wake_all(&self.0, FutexScope::Host);
        }

        /// Sleeps while the value is `expected`, until it changes, or for `limit`; may return
        /// early.
        #[allow(clippy::disallowed_methods, reason = "the wait of doorbells, with a time limit")]
        pub(in crate::wait) fn sleep(&self, expected: u32, limit: Duration) {
            futex::wait(&self.0, expected, limit, FutexScope::Host);
        }
    }
}

#[cfg(loom)]
mod model {
    use loom::sync::{Condvar, Mutex};
    use std::time::Duration;

    /// The kernel compares and queues under a lock that the waker takes too. The model has no time
    /// limit: if it sleeps forever, a wake-up was lost.
    #[derive(Debug, Default)]
    pub(in crate::wait) struct FutexWord(Mutex<u32>, Condvar);

    #[allow(clippy::unwrap_used, reason = "no thread panics while it holds the lock")]
    impl FutexWord {
        pub(in crate::wait) fn load(&self) -> u32 {
            *self.0.lock().unwrap()
        }

        pub(in crate::wait) fn bump(&self) {
            *self.0.lock().unwrap() += 1;
            self.1.notify_all();
        }

        pub(in crate::wait) fn sleep(&self, expected: u32, _limit: Duration) {
            let word = self.0.lock().unwrap();
            if *word == expected {
                drop(self.1.wait(word).unwrap());
            }
        }
    }
}
