//! The doorbell: how a waiter sleeps without missing what it waits for.
//!
//! A waiter sets its mode to *asleep*, looks once more at everything it waits for, and only then
//! sleeps on the word. A publisher stores what it has to say, and then reads the mode. Both sides put
//! a sequentially consistent fence between their store and their load (Dekker's pattern), so at
//! least one of them sees the other: either the waiter's second look finds the news, or the publisher
//! finds the sleeper and rings. The word is bumped before the wake, so a ring that falls between the
//! second look and the sleep makes the sleep return at once.
//!
//! A bell lives in process memory or in a segment shared between processes; it has one owner, who
//! waits, and any number of ringers. Two threads of one process may wait on one bell: the mode counts
//! them.
//!
//! An owner that waits for descriptors too cannot sleep on the word. It *listens* instead, and a ringer that
//! finds a listener must reach it in another way (see `SharedDomain::ring`).

use crate::sys::futex::{self, Scope};
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

/// One rank's doorbell. All zero bytes are a bell at rest.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Bell {
    /// Bumped at each ring that found a sleeper; what the sleeper sleeps on.
    word: AtomicU32,
    /// How many threads are asleep or about to be.
    sleepers: AtomicU32,
    /// How many of the owner's threads want to be told without sleeping here.
    listeners: AtomicU32,
}

/// What the word was before the last look.
#[derive(Clone, Copy, Debug)]
pub struct Ticket(u32);

impl Bell {
    /// Wakes the owner if it sleeps. Call it after the store that it waits for; the fence inside makes
    /// the order hold.
    pub fn ring(&self) {
        fence(Ordering::SeqCst);
        self.ring_fenced();
    }

    /// [`Bell::ring`] for a caller that rings several bells after one `fence(SeqCst)` of its own.
    pub fn ring_fenced(&self) {
        if self.sleepers.load(Ordering::Relaxed) != 0 {
            self.word.fetch_add(1, Ordering::Release);
            futex::wake_all(&self.word, Scope::Host);
        }
    }

    /// Begins to listen. Look again at what is waited for afterwards: what was said before is not told.
    pub fn listen(&self) {
        self.listeners.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Ends what [`Bell::listen`] began.
    pub fn stop_listening(&self) {
        self.listeners.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether the owner listens; for ringers, after a `fence(SeqCst)` of their own.
    pub fn has_listeners(&self) -> bool {
        self.listeners.load(Ordering::Relaxed) != 0
    }

    /// Announces that the owner is about to sleep. Look again before [`Bell::sleep`], and call
    /// [`Bell::awake`] afterwards in every case.
    pub fn prepare_to_sleep(&self) -> Ticket {
        let ticket = Ticket(self.word.load(Ordering::Acquire));
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        ticket
    }

    /// Sleeps until rung, or for `limit`; may return early.
    pub fn sleep(&self, ticket: Ticket, limit: Duration) {
        futex::wait(&self.word, ticket.0, limit, Scope::Host);
    }

    /// Ends what [`Bell::prepare_to_sleep`] announced.
    pub fn awake(&self) {
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }
}
