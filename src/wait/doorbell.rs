//! The doorbell: a thread (the *waiter*) sleeps on it until another thread (the *notifier*, of any
//! process) reports that it has stored the data for which the waiter waits. No notification is
//! lost.
//!
//! A doorbell is in process memory, or in a segment that processes share. Any number of threads may
//! notify it. Its waiters are threads of one process. Usually there is one waiter, but several
//! threads may wait on the same doorbell at the same time.
//!
//! # Sleeping
//!
//! A doorbell has a futex word (a word on which the kernel lets threads sleep) and the counter
//! `sleepers`. The data that the waiter waits for is elsewhere.
//!
//! ```text
//! waiter                                        notifier
//! W1  ticket = word                             N1  store the data
//! W2  sleepers += 1                             N2  fence(SeqCst)
//! W3  fence(SeqCst)                             N3  read sleepers; end here if it is 0
//! W4  poll the data; go to W6 if it is there    N4  word += 1
//! W5  sleep while word == ticket                N5  wake all threads that sleep on word
//! W6  sleepers -= 1
//! ```
//!
//! A notification could be lost in two ways. Neither is possible:
//!
//! - The waiter misses the data in W4, and the notifier reads 0 in N3. This is Dekker's pattern:
//!   each side stores (W2, N1) and then reads what the other side has stored (N3 reads what W2
//!   stored, and W4 reads what N1 stored). Because each side has a fence between its store and its
//!   read, at least one side sees the other side's store.
//! - The waiter misses the data, and the notifier wakes it (N5) before it sleeps (W5). N4 has then
//!   changed the word since W1, so W5 returns immediately.
//!
//! If N1 is a sequentially consistent read-modify-write, the fence N2 is not needed: N1 and the
//! sequentially consistent read N3 are in one total order with the fence W3. Such a notifier calls
//! [`fence_after_rmw`](crate::base::sync::fence_after_rmw) instead of N2. This function has no
//! effect, except under the model checker loom: loom does not know the rule, and needs a fence.
//!
//! # Listening
//!
//! A thread that waits for descriptors, such as the service thread, cannot sleep on the word. It
//! *listens* instead, which the counter `listeners` records. A notifier that finds a listener must
//! reach it through a descriptor (see `SharedDomain::wake_rank_fenced`). Dekker's pattern applies
//! here as well, with `listeners` in the place of `sleepers`.

use super::futex_word::FutexWord;
use crate::base::sync::{AtomicU32, Ordering, fence};
use std::time::Duration;

/// A doorbell. All zero bytes are a valid doorbell without waiters.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Doorbell {
    /// The futex word. Each notification that finds a sleeper increments it.
    word: FutexWord,
    /// The number of threads that sleep or are about to sleep.
    sleepers: AtomicU32,
    /// The number of threads that want to be notified through a descriptor.
    listeners: AtomicU32,
}

/// The value of the futex word before the last poll. If the word has another value when the sleep
/// with this ticket begins, the sleep returns immediately.
#[derive(Clone, Copy, Debug)]
pub struct SleepTicket(u32);

impl Doorbell {
    /// Wakes the threads that sleep on this doorbell. Call it after the store for which they wait.
    /// The fence in this function orders that store before the read of `sleepers`.
    pub fn notify(&self) {
        fence(Ordering::SeqCst);
        self.notify_fenced();
    }

    /// Does the same as [`Doorbell::notify`], without the fence. The caller must have ordered its
    /// store before this call, in one of two ways:
    ///
    /// - It has executed `fence(SeqCst)` after the store, for example once for several doorbells.
    /// - The store was a sequentially consistent read-modify-write, and the caller has called
    ///   [`fence_after_rmw`](crate::base::sync::fence_after_rmw) after it.
    pub fn notify_fenced(&self) {
        if self.sleepers.load(Ordering::SeqCst) != 0 {
            self.word.bump();
        }
    }

    /// Returns the number of notifications that found a sleeper.
    #[cfg(test)]
    pub fn notify_count(&self) -> u32 {
        self.word.load()
    }

    /// Returns true if a thread sleeps or listens, so that a notification has an effect. The caller
    /// must have ordered its store before this call, as for [`Doorbell::notify_fenced`].
    #[inline]
    pub fn has_waiters(&self) -> bool {
        self.sleepers.load(Ordering::SeqCst) != 0 || self.has_listeners()
    }

    /// Starts to listen. The caller must poll its conditions again after this call, because a store
    /// before this call may have caused no notification.
    pub fn listen(&self) {
        self.listeners.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Ends [`Doorbell::listen`].
    pub fn stop_listening(&self) {
        self.listeners.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns true if a thread listens. A notifier must have ordered its store before this call,
    /// as for [`Doorbell::notify_fenced`].
    pub fn has_listeners(&self) -> bool {
        self.listeners.load(Ordering::SeqCst) != 0
    }

    /// Sleeps until a notification, but at most for `limit`. Calls `ready` before and after the
    /// sleep, and returns its value. Does not sleep if `ready` returns a value or `may_sleep`
    /// returns false.
    pub fn sleep_unless_ready<T>(
        &self,
        limit: Duration,
        may_sleep: impl FnOnce() -> bool,
        mut ready: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        // If a notifier stores after this point, it finds the sleeper and wakes it. The poll below
        // sees every earlier store.
        let ticket = self.prepare_to_sleep();
        let mut found = ready();
        if found.is_none() && may_sleep() {
            self.sleep(ticket, limit);
            found = ready();
        }
        self.finish_sleep();
        found
    }

    /// Counts the calling thread as a sleeper. The caller must poll its conditions again before
    /// [`Doorbell::sleep`]. It must call [`Doorbell::finish_sleep`] afterwards, even if it did not
    /// sleep.
    pub fn prepare_to_sleep(&self) -> SleepTicket {
        let ticket = SleepTicket(self.word.load());
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        ticket
    }

    /// Sleeps until a notification, but at most for `limit`. May return early.
    pub fn sleep(&self, ticket: SleepTicket, limit: Duration) {
        self.word.sleep(ticket.0, limit);
    }

    /// Ends [`Doorbell::prepare_to_sleep`].
    pub fn finish_sleep(&self) {
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(all(test, loom))]
mod models {
    use crate::base::sync::{AtomicU64, Ordering, fence};
    use crate::wait::doorbell::Doorbell;
    use loom::sync::Arc;
    use loom::thread;
    use std::time::Duration;

    /// A notifier stores and notifies, and a waiter sleeps until it sees the store. If a wake-up is
    /// lost, loom reports a deadlock.
    #[test]
    fn loom_no_notification_is_lost() {
        loom::model(|| {
            let shared = Arc::new((Doorbell::default(), AtomicU64::new(0)));
            let notifier = Arc::clone(&shared);
            let notifier_thread = thread::spawn(move || {
                notifier.1.store(1, Ordering::Release);
                notifier.0.notify();
            });
            let poll = || (shared.1.load(Ordering::Acquire) == 1).then_some(());
            while shared.0.sleep_unless_ready(Duration::MAX, || true, poll).is_none() {}
            notifier_thread.join().unwrap();
        });
    }

    /// Two threads sleep on one doorbell, each until its own flag is set. A third thread sets both
    /// flags.
    #[test]
    fn loom_two_sleepers_are_woken_by_two_notifiers() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let shared = Arc::new((Doorbell::default(), [AtomicU64::new(0), AtomicU64::new(0)]));
            let waiter = Arc::clone(&shared);
            let waiting = thread::spawn(move || {
                let poll = || (waiter.1[0].load(Ordering::Acquire) == 1).then_some(());
                while waiter.0.sleep_unless_ready(Duration::MAX, || true, poll).is_none() {}
            });
            let notifier = Arc::clone(&shared);
            let notifier_thread = thread::spawn(move || {
                for flag in &notifier.1 {
                    flag.store(1, Ordering::Release);
                    notifier.0.notify();
                }
            });
            let poll = || (shared.1[1].load(Ordering::Acquire) == 1).then_some(());
            while shared.0.sleep_unless_ready(Duration::MAX, || true, poll).is_none() {}
            waiting.join().unwrap();
            notifier_thread.join().unwrap();
        });
    }

    /// The notifier finds the listener, or the listener's poll sees the notifier's store, or both.
    #[test]
    fn loom_listener_is_found_or_sees_the_store() {
        loom::model(|| {
            let shared = Arc::new((Doorbell::default(), AtomicU64::new(0)));
            let notifier = Arc::clone(&shared);
            let notifier_thread = thread::spawn(move || {
                notifier.1.store(1, Ordering::Release);
                fence(Ordering::SeqCst);
                notifier.0.has_listeners()
            });
            shared.0.listen();
            let saw = shared.1.load(Ordering::Acquire) == 1;
            let has_listeners = notifier_thread.join().unwrap();
            assert!(saw || has_listeners);
        });
    }
}
