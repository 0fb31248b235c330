//! The tickets and turns of a run queue. A ticket is a position in the queue. Its turn is the time
//! in which its operation may run.
//!
//! The counter `issued` gives each ticket its number or numbers. The counter `ended` counts the
//! numbers whose turns have ended. The head of the parent module explains why at most one thread
//! has the turn.

use crate::base::sync::{AtomicU64, Ordering, fence_after_rmw};
use crate::wait::doorbell::Doorbell;

/// The counters that determine which ticket has the turn.
#[derive(Debug, Default)]
pub(super) struct TurnCounters {
    /// The count of numbers that tickets have taken. It is also the next number to take.
    pub(super) issued: AtomicU64,
    /// The count of numbers whose turns have ended. It is also the number of the ticket that has
    /// the turn.
    ended: AtomicU64,
    /// All threads that wait for a turn, for a work or for a job sleep on this doorbell. It is
    /// notified when a turn or a work ends and when a job is added.
    pub(super) doorbell: Doorbell,
}

impl TurnCounters {
    /// Takes `count` consecutive numbers and returns the first.
    pub(super) fn take_numbers(&self, count: u64) -> u64 {
        self.issued.fetch_add(count, Ordering::Relaxed)
    }

    /// Takes the next number if its turn begins immediately, that is, if all issued operations have
    /// ended.
    pub(super) fn try_take_turn(&self) -> Option<u64> {
        let number = self.ended.load(Ordering::Acquire);
        // `ended` never exceeds `issued`. So if `issued` equals the value of `ended` that was
        // loaded before, all issued operations have ended.
        let next =
            self.issued.compare_exchange(number, number + 1, Ordering::Relaxed, Ordering::Relaxed);
        next.ok()
    }

    pub(super) fn is_turn_of(&self, number: u64) -> bool {
        self.ended.load(Ordering::Acquire) == number
    }

    fn end(&self, count: u64) {
        // `SeqCst` orders this store before the notification of the doorbell that follows.
        self.ended.fetch_add(count, Ordering::SeqCst);
    }
}

/// A position in the queue. Each ticket must get and end its turn. If the wait for the turn fails,
/// no later ticket gets a turn. Therefore the caller must then fail the group; the operation may
/// also have run on other ranks.
#[derive(Debug)]
pub struct Ticket {
    pub(super) number: u64,
    /// The number of consecutive numbers that the ticket has, starting with `number`.
    pub(super) count: u64,
}

/// The right to run the operation of a ticket. The turn ends when this object is dropped.
#[derive(Debug)]
pub struct Turn<'a> {
    pub(super) turns: &'a TurnCounters,
    pub(super) count: u64,
}

impl Ticket {
    /// Returns the sequence number of the ticket's first operation. Sequence numbers start at 1.
    pub fn sequence(&self) -> u64 {
        self.number + 1
    }
}

impl Turn<'_> {
    /// Ends the turn without notifying the doorbell. The caller must then end a work, which
    /// notifies the doorbell.
    pub fn end_without_wake(self) {
        self.turns.end(self.count);
        // A drop of `self` would end a second turn.
        let _ended = std::mem::ManuallyDrop::new(self);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.end(self.count);
        fence_after_rmw();
        self.turns.doorbell.notify_fenced();
    }
}
