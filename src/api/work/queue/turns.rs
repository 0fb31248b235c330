//! The turns of a run queue: a ticket has consecutive numbers, and each number has one turn.
//!
//! One counter gives the numbers, another counts the numbers whose turns have ended. The head of
//! the queue's module argues why at most one thread has the turn.

use crate::base::sync::{AtomicU64, Ordering, fence_after_rmw};
use crate::wait::doorbell::Doorbell;

/// The counters that determine the number whose turn it is.
#[derive(Debug, Default)]
pub(super) struct TurnCounters {
    /// The count of issued numbers.
    pub(super) issued: AtomicU64,
    /// The count of numbers whose turns have ended.
    ended: AtomicU64,
    /// Rung when a turn or a work ends, and when a job is added. Every thread that waits for one of
    /// these events waits here.
    pub(super) doorbell: Doorbell,
}

impl TurnCounters {
    pub(super) fn take_numbers(&self, count: u64) -> u64 {
        self.issued.fetch_add(count, Ordering::Relaxed)
    }

    /// Takes the next number if its turn is immediate: all issued operations have ended.
    pub(super) fn try_take_turn(&self) -> Option<u64> {
        let number = self.ended.load(Ordering::Acquire);
        // `ended` never exceeds `issued`. If `issued` still equals the loaded `ended`, all issued
        // turns have ended.
        let next =
            self.issued.compare_exchange(number, number + 1, Ordering::Relaxed, Ordering::Relaxed);
        next.ok()
    }

    pub(super) fn is_turn_of(&self, number: u64) -> bool {
        self.ended.load(Ordering::Acquire) == number
    }

    fn end(&self, count: u64) {
        // `SeqCst` orders the store before the notification that follows.
        self.ended.fetch_add(count, Ordering::SeqCst);
    }
}

/// A position in the queue. If the wait for its turn fails, the ticket stops the queue. The
/// operation may have run on other ranks, so the caller must fail the group.
#[derive(Debug)]
pub struct Ticket {
    pub(super) number: u64,
    /// The number of consecutive numbers, starting with `number`.
    pub(super) count: u64,
}

/// The right to run an operation. The turn ends when this is dropped.
#[derive(Debug)]
pub struct Turn<'a> {
    pub(super) turns: &'a TurnCounters,
    pub(super) count: u64,
}

impl Ticket {
    /// Returns the operation's sequence number, starting at 1. For several operations it is the
    /// number of the first.
    pub fn sequence(&self) -> u64 {
        self.number + 1
    }
}

impl Turn<'_> {
    /// Ends the turn without a notification. The caller must end a work next, which notifies.
    pub fn end_without_wake(self) {
        self.turns.end(self.count);
        // A drop would end a second turn.
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
