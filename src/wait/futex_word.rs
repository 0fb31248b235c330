//! A word to sleep on: a futex, or under the model checker what a futex means.

#[cfg(not(loom))]
pub(super) use futex::FutexWord;
#[cfg(loom)]
pub(super) use model::FutexWord;

#[cfg(not(loom))]
mod futex {
    use crate::sys::futex::{self, FutexScope};
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    /// The word. All zero bytes are 0; it may be shared between processes.
    #[derive(Debug, Default)]
    #[repr(transparent)]
    pub(in crate::wait) struct FutexWord(AtomicU32);

    impl FutexWord {
        /// What it holds.
        pub(in crate::wait) fn load(&self) -> u32 {
            self.0.load(Ordering::Acquire)
        }

        /// Changes it, and wakes everybody who sleeps on what it was.
        pub(in crate::wait) fn bump(&self) {
            self.0.fetch_add(1, Ordering::Release);
            futex::wake_all(&self.0, FutexScope::Host);
        }

        /// Sleeps while it holds `expected`, until it is bumped, or for `limit`; may return early.
        #[allow(clippy::disallowed_methods, reason = "bounded, and what doorbells sleep on")]
        pub(in crate::wait) fn sleep(&self, expected: u32, limit: Duration) {
            futex::wait(&self.0, expected, limit, FutexScope::Host);
        }
    }
}

#[cfg(loom)]
mod model {
    use loom::sync::{Condvar, Mutex};
    use std::time::Duration;

    /// The kernel compares and queues under a lock that the waker takes too. No limit: a model that
    /// sleeps for ever has lost a wake-up.
    #[derive(Debug, Default)]
    pub(in crate::wait) struct FutexWord(Mutex<u32>, Condvar);

    #[allow(clippy::unwrap_used, reason = "nobody panics while holding the lock")]
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
