//! The doorbell: how a waiter sleeps without missing what it waits for.
//!
//! A waiter sets its mode to *asleep*, looks once more at everything it waits for, and only then
//! sleeps on the word. A publisher stores what it has to say, and then reads the mode. Both sides
//! put a sequentially consistent fence between their store and their load (Dekker's pattern), so at
//! least one of them sees the other: either the waiter's second look finds the news, or the
//! publisher finds the sleeper and rings. A publisher whose store is a sequentially consistent
//! read-modify-write needs no fence: that and the load of the mode, which is sequentially
//! consistent too, have their places in the one order with the waiter's fence. The word is bumped
//! before the wake, so a ring that falls between the second look and the sleep makes the sleep
//! return at once.
//!
//! A bell lives in process memory or in a segment shared between processes; it has one owner, who
//! waits, and any number of ringers. Two threads of one process may wait on one bell: the mode
//! counts them.
//!
//! An owner that waits for descriptors too cannot sleep on the word. It *listens* instead, and a
//! ringer that finds a listener must reach it in another way (see `SharedDomain::notify`).

use super::futex_word::FutexWord;
use crate::base::sync::{AtomicU32, Ordering, fence};
use std::time::Duration;

/// One rank's doorbell. All zero bytes are a bell at rest.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Doorbell {
    /// Bumped at each ring that found a sleeper; what the sleeper sleeps on.
    word: FutexWord,
    /// How many threads are asleep or about to be.
    sleepers: AtomicU32,
    /// How many of the owner's threads want to be told without sleeping here.
    listeners: AtomicU32,
}

/// What the word was before the last look.
#[derive(Clone, Copy, Debug)]
pub struct SleepTicket(u32);

impl Doorbell {
    /// Wakes the owner if it sleeps. Call it after the store that it waits for; the fence inside
    /// makes the order hold.
    pub fn notify(&self) {
        fence(Ordering::SeqCst);
        self.notify_fenced();
    }

    /// [`Doorbell::notify`] for a caller that rings several bells after one `fence(SeqCst)` of its
    /// own, or whose store was a sequentially consistent read-modify-write followed by
    /// [`fence_after_rmw`](crate::base::sync::fence_after_rmw).
    pub fn notify_fenced(&self) {
        if self.sleepers.load(Ordering::SeqCst) != 0 {
            self.word.bump();
        }
    }

    /// How often sleepers were rung for.
    #[cfg(test)]
    pub fn notify_count(&self) -> u32 {
        self.word.load()
    }

    /// Whether anybody sleeps here or listens, so that a ring is heard: for callers of
    /// [`Doorbell::notify_fenced`], under its terms.
    #[inline]
    pub fn has_waiters(&self) -> bool {
        self.sleepers.load(Ordering::SeqCst) != 0 || self.has_listeners()
    }

    /// Begins to listen. Look again at what is waited for afterwards: what was said before is not
    /// told.
    pub fn listen(&self) {
        self.listeners.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Ends what [`Doorbell::listen`] began.
    pub fn stop_listening(&self) {
        self.listeners.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether the owner listens; for ringers, as [`Doorbell::notify_fenced`].
    pub fn has_listeners(&self) -> bool {
        self.listeners.load(Ordering::SeqCst) != 0
    }

    /// Sleeps until rung or for `limit`, unless there is something to see; `ready` is asked before
    /// and after. `may_sleep` is asked too, before, and keeps it awake by being false.
    pub fn sleep_unless_ready<T>(
        &self,
        limit: Duration,
        may_sleep: impl FnOnce() -> bool,
        mut ready: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        // Whoever publishes after this point finds the mode set and rings; whatever was published
        // before it, the look sees.
        let ticket = self.prepare_to_sleep();
        let mut found = ready();
        if found.is_none() && may_sleep() {
            self.sleep(ticket, limit);
            found = ready();
        }
        self.finish_sleep();
        found
    }

    /// Announces that the owner is about to sleep. Look again before [`Doorbell::sleep`], and call
    /// [`Doorbell::finish_sleep`] afterwards in every case.
    pub fn prepare_to_sleep(&self) -> SleepTicket {
        let ticket = SleepTicket(self.word.load());
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        ticket
    }

    /// Sleeps until rung, or for `limit`; may return early.
    pub fn sleep(&self, ticket: SleepTicket, limit: Duration) {
        self.word.sleep(ticket.0, limit);
    }

    /// Ends what [`Doorbell::prepare_to_sleep`] announced.
    pub fn finish_sleep(&self) {
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::base::sync::AtomicU64;
    use loom::sync::Arc;
    use loom::thread;

    /// A ringer stores and rings; a waiter dozes until it sees it. Loom reports a deadlock where a
    /// wake-up is lost.
    #[test]
    fn loom_no_notification_is_lost() {
        loom::model(|| {
            let shared = Arc::new((Doorbell::default(), AtomicU64::new(0)));
            let ringer = Arc::clone(&shared);
            let ringing = thread::spawn(move || {
                ringer.1.store(1, Ordering::Release);
                ringer.0.notify();
            });
            let look = || (shared.1.load(Ordering::Acquire) == 1).then_some(());
            while shared.0.sleep_unless_ready(Duration::MAX, || true, look).is_none() {}
            ringing.join().unwrap();
        });
    }

    /// Two owners on one bell, each waiting for something else, and two ringers.
    #[test]
    fn loom_two_sleepers_are_woken_by_two_notifiers() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let shared = Arc::new((Doorbell::default(), [AtomicU64::new(0), AtomicU64::new(0)]));
            let waiter = Arc::clone(&shared);
            let waiting = thread::spawn(move || {
                let look = || (waiter.1[0].load(Ordering::Acquire) == 1).then_some(());
                while waiter.0.sleep_unless_ready(Duration::MAX, || true, look).is_none() {}
            });
            let ringer = Arc::clone(&shared);
            let ringing = thread::spawn(move || {
                for flag in &ringer.1 {
                    flag.store(1, Ordering::Release);
                    ringer.0.notify();
                }
            });
            let look = || (shared.1[1].load(Ordering::Acquire) == 1).then_some(());
            while shared.0.sleep_unless_ready(Duration::MAX, || true, look).is_none() {}
            waiting.join().unwrap();
            ringing.join().unwrap();
        });
    }

    /// A ringer that finds nobody listening has stored before the listener's look.
    #[test]
    fn loom_listener_is_found_or_sees_the_store() {
        loom::model(|| {
            let shared = Arc::new((Doorbell::default(), AtomicU64::new(0)));
            let ringer = Arc::clone(&shared);
            let ringing = thread::spawn(move || {
                ringer.1.store(1, Ordering::Release);
                fence(Ordering::SeqCst);
                ringer.0.has_listeners()
            });
            shared.0.listen();
            let saw = shared.1.load(Ordering::Acquire) == 1;
            let knocked = ringing.join().unwrap();
            assert!(saw || knocked);
        });
    }
}
