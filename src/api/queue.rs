//! The run token of a group: operations start in the order in which they were issued, one at a time.
//!
//! Issuing takes a ticket; the ticket's number is the operation's sequence number. Whoever holds the
//! lowest ticket runs its operation to the end on its own thread, so that a lone blocking call has no
//! hand-off. The worker that will run asynchronous calls takes its turns the same way.

use crate::base::deadline::Deadline;
use crate::base::error::Error;
use crate::wait::bell::Bell;
use crate::wait::{Interrupt, Pace, until};
use std::sync::atomic::{AtomicU64, Ordering};

/// The queue of one group.
#[derive(Debug, Default)]
pub struct RunQueue {
    /// Tickets given out.
    issued: AtomicU64,
    /// Turns that have ended.
    ended: AtomicU64,
    /// Rung when a turn ends; everybody who waits for a turn waits here.
    bell: Bell,
}

/// A place in the queue. A ticket whose turn never comes (its wait failed) stops the queue: on other
/// ranks the operation may have run, so the group must be failed.
#[derive(Debug)]
pub struct Ticket(u64);

/// The right to run; ends when dropped.
#[derive(Debug)]
pub struct Turn<'a> {
    queue: &'a RunQueue,
}

impl Ticket {
    /// The sequence number of the operation, from 1.
    pub fn sequence(&self) -> u64 {
        self.0 + 1
    }
}

impl RunQueue {
    /// Takes the next place.
    pub fn issue(&self) -> Ticket {
        Ticket(self.issued.fetch_add(1, Ordering::Relaxed))
    }

    /// How many operations have been issued.
    pub fn issued(&self) -> u64 {
        self.issued.load(Ordering::Relaxed)
    }

    /// Waits for the ticket's turn.
    ///
    /// # Errors
    /// What ended the wait instead.
    pub fn wait_turn(
        &self,
        ticket: &Ticket,
        deadline: &Deadline,
        halted: impl Fn() -> Option<Error>,
    ) -> Result<Turn<'_>, Interrupt> {
        let ready = || (self.ended.load(Ordering::Acquire) == ticket.0).then_some(());
        until(&self.bell, Pace::PATIENT, deadline, halted, ready)?;
        Ok(Turn { queue: self })
    }

    /// Makes everybody who waits for a turn look whether the group has failed.
    pub fn wake_all(&self) {
        self.bell.ring();
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.queue.ended.fetch_add(1, Ordering::Release);
        self.queue.bell.ring();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::error::ErrorKind;
    use std::sync::{Arc, Mutex};

    #[test]
    fn turns_come_in_order_of_issue() {
        let queue = Arc::new(RunQueue::default());
        let order = Arc::new(Mutex::new(Vec::new()));
        let tickets: Vec<_> = (0..8).map(|_| queue.issue()).collect();
        std::thread::scope(|scope| {
            for ticket in tickets.into_iter().rev() {
                let (queue, order) = (Arc::clone(&queue), Arc::clone(&order));
                scope.spawn(move || {
                    let deadline = Deadline::after_ms(10_000);
                    let turn = queue.wait_turn(&ticket, &deadline, || None).unwrap();
                    order.lock().unwrap().push(ticket.sequence());
                    drop(turn);
                });
            }
        });
        assert_eq!(*order.lock().unwrap(), (1..=8).collect::<Vec<_>>());
    }

    #[test]
    fn a_turn_that_does_not_come_ends_with_the_deadline_or_the_group() {
        let queue = RunQueue::default();
        let (first, second) = (queue.issue(), queue.issue());
        let turn = queue.wait_turn(&first, &Deadline::never(), || None).unwrap();
        let late = queue.wait_turn(&second, &Deadline::after_ms(5), || None);
        assert!(matches!(late, Err(Interrupt::Deadline)));
        let failed = || Some(Error::new(ErrorKind::Aborted, "stop"));
        let halted = queue.wait_turn(&second, &Deadline::never(), failed);
        assert!(matches!(halted, Err(Interrupt::Halted(_))));
        drop(turn);
        assert!(queue.wait_turn(&second, &Deadline::never(), || None).is_ok());
    }
}
