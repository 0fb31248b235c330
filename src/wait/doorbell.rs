//! The doorbell: lets a waiter sleep without missing a notification.
//!
//! The protocol is Dekker's pattern:
//!
//! 1. The waiter increments `sleepers`, polls all its conditions once more, and only then sleeps on
//!    the word.
//! 2. The publisher stores its data, and then reads `sleepers`.
//!
//! Both sides put a sequentially consistent fence between their store and their load, so at least
//! one of them sees the other. Either the waiter's second poll finds the data, or the publisher
//! finds the sleeper and notifies it. A publisher whose store is a sequentially consistent
//! read-modify-write needs no fence: this operation and the sequentially consistent load of
//! `sleepers` are ordered with the waiter's fence in the single total order. The publisher
//! increments the word before the wake, so a notification between the second poll and the sleep
//! ends the sleep at once.
//!
//! A doorbell is in process memory or in a segment that processes share. It has one owner, which
//! waits, and any number of notifiers. Two threads of one process may wait on the same doorbell,
//! because `sleepers` counts them.
//!
//! An owner that also waits for descriptors cannot sleep on the word. It *listens* instead, and a
//! notifier that finds a listener must reach it through a descriptor (see `SharedDomain::notify`).

use super::futex_word::FutexWord;
use crate::base::sync::{AtomicU32, Ordering, fence};
use std::time::Duration;

/// One rank's doorbell. All zero bytes are a valid doorbell without sleepers.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Doorbell {
    /// Incremented by each notification that found a sleeper; the sleeper's futex word.
    word: FutexWord,
    /// How many threads sleep or are about to sleep.
    sleepers: AtomicU32,
    /// How many of the owner's threads want to be notified through a descriptor.
    listeners: AtomicU32,
}

/// The value of the word before the last poll.
#[derive(Clone, Copy, Debug)]
pub struct SleepTicket(u32);

impl Doorbell {
    /// Wakes the owner if it sleeps. Call it after the store that the owner waits for; the fence in
    /// this function orders the two.
    pub fn notify(&self) {
        fence(Ordering::SeqCst);
        self.notify_fenced();
    }

    /// [`Doorbell::notify`] without its fence. The caller either notifies several doorbells after
    /// its own `fence(SeqCst)`, or its store was a sequentially consistent read-modify-write
    /// followed by [`fence_after_rmw`](crate::base::sync::fence_after_rmw).
    pub fn notify_fenced(&self) {
        if self.sleepers.load(Ordering::SeqCst) != 0 {
            self.word.bump();
        }
    }

    /// Returns how many notifications found a sleeper.
    #[cfg(test)]
    pub fn notify_count(&self) -> u32 {
        self.word.load()
    }

    /// Returns true if a thread sleeps or listens, so that a notification has an effect. The
    /// ordering rule of [`Doorbell::notify_fenced`] applies.
    #[inline]
    pub fn has_waiters(&self) -> bool {
        self.sleepers.load(Ordering::SeqCst) != 0 || self.has_listeners()
    }

    /// Starts to listen. The caller must poll its conditions again afterwards, because earlier
    /// stores cause no notification.
    pub fn listen(&self) {
        self.listeners.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Ends [`Doorbell::listen`].
    pub fn stop_listening(&self) {
        self.listeners.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns true if the owner listens. The ordering rule of [`Doorbell::notify_fenced`] applies
    /// to the notifier.
    pub fn has_listeners(&self) -> bool {
        self.listeners.load(Ordering::SeqCst) != 0
    }

    /// Sleeps until a notification or for `limit`, unless `ready` returns a value. Calls `ready`
    /// before and after the sleep. Does not sleep if `may_sleep` returns false.
    pub fn sleep_unless_ready<T>(
        &self,
        limit: Duration,
        may_sleep: impl FnOnce() -> bool,
        mut ready: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        // A publisher that stores after this point finds the sleeper and notifies it. The poll
        // below sees every earlier store.
        let ticket = self.prepare_to_sleep();
        let mut found = ready();
        if found.is_none() && may_sleep() {
            self.sleep(ticket, limit);
            found = ready();
        }
        self.finish_sleep();
        found
    }

    /// Announces that the owner is about to sleep. The caller must poll its conditions again before
    /// [`Doorbell::sleep`], and must call [`Doorbell::finish_sleep`] afterwards in every case.
    pub fn prepare_to_sleep(&self) -> SleepTicket {
        let ticket = SleepTicket(self.word.load());
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        ticket
    }

    /// Sleeps until a notification, or for `limit`; may return early.
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

    /// A notifier stores and notifies; a waiter sleeps until it sees the store. Loom reports a
    /// deadlock if a wake-up is lost.
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

    /// Two owners of one doorbell wait for different flags, and a notifier sets both.
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

    /// A notifier that finds no listener has stored before the listener's poll.
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
