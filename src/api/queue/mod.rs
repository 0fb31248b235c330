//! The run queue of a group: operations start in the order in which they were issued, one at a
//! time.
//!
//! Issuing takes a ticket; the ticket's number is the operation's sequence number. A *blocking*
//! call takes a number and waits on its own thread until all before it have ended, so that a lone
//! one costs a `fetch_add` and has no hand-off. An *asynchronous* one leaves a [`QueueJob`] behind,
//! which whoever comes first runs to its end: a blocking caller that waits for its turn, a thread
//! that waits for a work, or the queue's [`worker`]. Only the worker takes every job: the others
//! return at a time of their own, and take none that may last longer.
//!
//! A ticket may have several numbers in a row, for a call that takes one turn and carries out
//! several operations in it: each has a sequence number of its own, and the turn of the next ticket
//! begins after the last of them.
//!
//! # Order
//! All numbers come from one counter by `fetch_add`, so there is one order, and what happens before
//! in the program has the lower number. A job's number is taken while the list of jobs is locked
//! and the job is put there before the lock is released: the list is sorted.
//!
//! # One at a time
//! `ended` counts numbers whose turns have ended; number n has its turn while `ended` is n. Who may
//! act on n is one thread: the one that took the ticket, or the one that took the job from the
//! list, which happens under the lock and only while `ended` is n. Only whoever has the turn
//! advances `ended` (release), and whoever takes the next reads it (acquire), so that each
//! operation sees all that those before it have done.
//!
//! # Nobody sleeps for ever
//! Whoever waits looks at `ended`, at the number of the first job (`first_job`, a copy outside of
//! the lock) and at the outcome of works. Each of them is written before the bell is rung, whose
//! fences make sure that a waiter's last look before it sleeps sees the change or that the ringer
//! sees the sleeper (see `wait::doorbell`). A number without a job between its `fetch_add` and its
//! place in the list has its ring still to come. As long as there are jobs there is a worker: it is
//! started before the first one is put into the list, and ends only, under the lock, with the list
//! empty. A ticket whose caller has given up never ends its turn; then the group has failed, and
//! the jobs behind are completed with that cause instead of being run.

mod worker;

#[cfg(all(test, loom))]
mod models;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

use super::events::CompletionEvents;
use crate::base::deadline::{Deadline, LazyDeadline};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::sync::{AtomicU64, Mutex, MutexGuard, Ordering, fence_after_rmw};
use crate::wait::doorbell::Doorbell;
use crate::wait::{WaitInterrupt, WaitPolicy, wait_until};
use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::{Arc, OnceLock, PoisonError};

/// How many works of a group may be outstanding.
pub const MAX_WORKS: u64 = 65_536;

/// A bit in the number of outstanding works: no further one may begin.
const CLOSED: u64 = 1 << 63;

/// What stands for the number of the first job where there is none.
const NO_JOB: u64 = u64::MAX;

/// An asynchronous operation that waits for its turn. Exactly one of the methods that consume it is
/// called, with no lock held.
pub trait QueueJob: Send + Debug {
    /// When it must have ended.
    fn deadline(&self) -> &Deadline;

    /// Why its group has failed, if it has.
    fn failure(&self) -> Option<Error>;

    /// Runs it and ends the turn.
    fn run(self: Box<Self>, turn: Turn<'_>);

    /// Its deadline has passed before its turn: fails its group.
    fn expire(self: Box<Self>);

    /// Completes it with the failure of its group.
    fn fail(self: Box<Self>, cause: &Error);
}

/// Whose turn it is.
#[derive(Debug, Default)]
struct TurnCounters {
    /// Numbers given out.
    issued: AtomicU64,
    /// Numbers whose turns have ended.
    ended: AtomicU64,
}

impl TurnCounters {
    fn take_numbers(&self, count: u64) -> u64 {
        self.issued.fetch_add(count, Ordering::Relaxed)
    }

    /// The next number, if its turn has come already: nothing that was issued has not ended.
    fn try_take_turn(&self) -> Option<u64> {
        let number = self.ended.load(Ordering::Acquire);
        // No turn ends that was not issued, so that the one is not behind the other where they are
        // the same now.
        let next =
            self.issued.compare_exchange(number, number + 1, Ordering::Relaxed, Ordering::Relaxed);
        next.ok()
    }

    fn is_turn_of(&self, number: u64) -> bool {
        self.ended.load(Ordering::Acquire) == number
    }

    fn end(&self, count: u64) {
        // Sequentially consistent for the ring that follows.
        self.ended.fetch_add(count, Ordering::SeqCst);
    }
}

/// The jobs whose turn has not come, by number.
#[derive(Debug, Default)]
struct WaitingJobs {
    waiting: VecDeque<(Ticket, Box<dyn QueueJob>)>,
    has_worker: bool,
}

/// The queue of one group.
#[derive(Debug)]
pub struct RunQueue {
    turns: TurnCounters,
    jobs: Mutex<WaitingJobs>,
    /// The number of the first job, or `NO_JOB`. Written under the lock.
    first_job: AtomicU64,
    /// Works that have been issued and have not ended, and `CLOSED`.
    outstanding_works: AtomicU64,
    /// The list of works that ended, once the caller asked for a descriptor.
    events: OnceLock<Arc<CompletionEvents>>,
    /// Rung when a turn or a work ends, and when a job comes; whoever waits for one of these waits
    /// here.
    doorbell: Doorbell,
    /// Rung when a job comes: what an idle worker waits for, so that blocking calls need not wake
    /// it.
    worker_doorbell: Doorbell,
}

/// A place in the queue. A ticket whose turn never comes (its wait failed) stops the queue: on
/// other ranks the operation may have run, so the group must be failed.
#[derive(Debug)]
pub struct Ticket {
    number: u64,
    /// How many numbers it has, from that one on.
    count: u64,
}

/// The right to run; ends when dropped.
#[derive(Debug)]
pub struct Turn<'a> {
    queue: &'a RunQueue,
    count: u64,
}

/// A job, and the turn that has come for it.
#[derive(Debug)]
pub struct ClaimedJob<'a> {
    job: Box<dyn QueueJob>,
    turn: Turn<'a>,
}

/// What a caller that waits for its turn finds.
enum TurnOrJob<'a> {
    Turn(Turn<'a>),
    Job(ClaimedJob<'a>),
}

impl Ticket {
    /// The sequence number of the operation, from 1; of several, that of the first.
    pub fn sequence(&self) -> u64 {
        self.number + 1
    }
}

impl ClaimedJob<'_> {
    /// Runs the job to its end.
    pub fn run(self) {
        self.job.run(self.turn);
    }
}

impl Default for RunQueue {
    fn default() -> Self {
        Self {
            turns: TurnCounters::default(),
            jobs: Mutex::default(),
            first_job: AtomicU64::new(NO_JOB),
            outstanding_works: AtomicU64::new(0),
            events: OnceLock::new(),
            doorbell: Doorbell::default(),
            worker_doorbell: Doorbell::default(),
        }
    }
}

impl RunQueue {
    /// Takes the next place, for an operation that runs on the calling thread.
    pub fn issue(&self) -> Ticket {
        self.issue_several(1)
    }

    /// The same for a call of so many operations.
    pub fn issue_several(&self, count: u64) -> Ticket {
        Ticket { number: self.turns.take_numbers(count), count }
    }

    /// Takes the next place for a job, which `make` makes once it knows its number.
    ///
    /// # Errors
    /// `System` where no worker can be started; then no number has been taken.
    pub fn enqueue(
        self: &Arc<Self>,
        make: impl FnOnce(&Ticket) -> Box<dyn QueueJob>,
    ) -> Result<()> {
        self.enqueue_several(1, make)
    }

    /// The same for a job of so many operations.
    ///
    /// # Errors
    /// As [`RunQueue::enqueue`].
    pub fn enqueue_several(
        self: &Arc<Self>,
        count: u64,
        make: impl FnOnce(&Ticket) -> Box<dyn QueueJob>,
    ) -> Result<()> {
        let mut jobs = self.lock_jobs();
        if !jobs.has_worker {
            worker::start_worker(Arc::clone(self))?;
            jobs.has_worker = true;
        }
        let ticket = self.issue_several(count);
        let job = make(&ticket);
        jobs.waiting.push_back((ticket, job));
        self.publish_first(&jobs);
        drop(jobs);
        self.doorbell.notify();
        self.worker_doorbell.notify_fenced();
        Ok(())
    }

    /// Whether all that has been issued has ended.
    pub fn is_idle(&self) -> bool {
        self.turns.is_turn_of(self.issued())
    }

    /// How many operations have been issued.
    pub fn issued(&self) -> u64 {
        self.turns.issued.load(Ordering::Relaxed)
    }

    /// Whether the ticket's turn has come, so that waiting for it takes no time.
    pub fn has_turn(&self, ticket: &Ticket) -> bool {
        self.turns.is_turn_of(ticket.number)
    }

    /// Waits for the ticket's turn, and runs the jobs before it that end in time.
    ///
    /// # Errors
    /// What ended the wait instead.
    pub fn wait_turn(
        &self,
        ticket: &Ticket,
        deadline: &LazyDeadline,
        failure: impl Fn() -> Option<Error>,
    ) -> std::result::Result<Turn<'_>, WaitInterrupt> {
        if self.has_turn(ticket) {
            return Ok(Turn { queue: self, count: ticket.count });
        }
        self.wait_turn_slow(ticket, deadline.get_or_start(), failure)
    }

    /// Takes the next place where its turn comes at once, for an operation that runs on the calling
    /// thread: what a lone caller finds.
    pub fn try_issue_with_turn(&self) -> Option<(Ticket, Turn<'_>)> {
        let number = self.turns.try_take_turn()?;
        Some((Ticket { number, count: 1 }, Turn { queue: self, count: 1 }))
    }

    /// [`RunQueue::wait_turn`] where there is something before the ticket.
    #[cold]
    fn wait_turn_slow(
        &self,
        ticket: &Ticket,
        deadline: &Deadline,
        failure: impl Fn() -> Option<Error>,
    ) -> std::result::Result<Turn<'_>, WaitInterrupt> {
        let ready = || {
            if self.turns.is_turn_of(ticket.number) {
                return Some(TurnOrJob::Turn(Turn { queue: self, count: ticket.count }));
            }
            self.claim_first_job(Some(deadline)).map(TurnOrJob::Job)
        };
        loop {
            match wait_until(&self.doorbell, WaitPolicy::SLEEP_SOON, deadline, &failure, ready)? {
                TurnOrJob::Turn(turn) => return Ok(turn),
                TurnOrJob::Job(claim) => claim.run(),
            }
        }
    }

    /// Waits until `is_over` holds, which must depend only on works of this queue, and runs the
    /// jobs meanwhile that end in time. `own_operation` is an operation of this queue, by its
    /// sequence number, and its deadline: if that passes before its turn, its group is failed.
    /// False where the limit came first.
    pub fn wait_for(
        &self,
        is_over: impl Fn() -> bool,
        limit: &Deadline,
        mut own_operation: Option<(u64, Deadline)>,
    ) -> bool {
        loop {
            let own_deadline =
                own_operation.map(|(_, own)| own).filter(|own| own.remaining() < limit.remaining());
            let first_deadline = own_deadline.as_ref().unwrap_or(limit);
            // Neither may be missed because of somebody else's operation.
            let ready = || {
                if is_over() {
                    Some(None)
                } else {
                    self.claim_first_job(Some(first_deadline)).map(Some)
                }
            };
            match wait_until(
                &self.doorbell,
                WaitPolicy::SLEEP_SOON,
                first_deadline,
                || self.first_job_failure(),
                ready,
            ) {
                Ok(None) => return true,
                Ok(Some(claim)) => claim.run(),
                Err(WaitInterrupt::Aborted(cause)) => self.fail_waiting_jobs(&cause),
                Err(WaitInterrupt::Deadline) => {
                    if let Some((sequence, _)) = own_operation.take_if(|(_, own)| own.has_passed())
                    {
                        self.expire_job(sequence);
                    } else if limit.has_passed() {
                        return is_over();
                    }
                }
            }
        }
    }

    /// The first job, if its turn has come and it ends before the limit does, where there is one.
    fn claim_first_job(&self, limit: Option<&Deadline>) -> Option<ClaimedJob<'_>> {
        if !self.turns.is_turn_of(self.first_job.load(Ordering::Relaxed)) {
            return None;
        }
        let mut jobs = self.lock_jobs();
        let (ticket, job) = jobs.waiting.front()?;
        // In this order: a deadline is not earlier than itself.
        let ends_too_late = |limit: &Deadline| {
            let left = limit.remaining();
            left < job.deadline().remaining()
        };
        if !self.turns.is_turn_of(ticket.number) || limit.is_some_and(ends_too_late) {
            return None;
        }
        let (ticket, job) = jobs.waiting.pop_front()?;
        self.publish_first(&jobs);
        Some(ClaimedJob { job, turn: Turn { queue: self, count: ticket.count } })
    }

    /// Takes a job whose deadline has passed out of the queue, which fails its group. Nothing
    /// happens to one that runs.
    pub(super) fn expire_job(&self, sequence: u64) {
        let mut jobs = self.lock_jobs();
        let Ok(position) =
            jobs.waiting.binary_search_by_key(&sequence, |(ticket, _)| ticket.sequence())
        else {
            return;
        };
        let taken = jobs.waiting.remove(position);
        self.publish_first(&jobs);
        drop(jobs);
        if let Some((_, job)) = taken {
            job.expire();
        }
    }

    /// Why the group of the jobs that wait has failed, if it has.
    fn first_job_failure(&self) -> Option<Error> {
        self.lock_jobs().waiting.front().and_then(|(_, job)| job.failure())
    }

    /// Completes all jobs that wait with the failure of their group, and makes everybody who waits
    /// look at it.
    pub fn fail_waiting_jobs(&self, cause: &Error) {
        let waiting = {
            let mut jobs = self.lock_jobs();
            let waiting = std::mem::take(&mut jobs.waiting);
            self.publish_first(&jobs);
            waiting
        };
        waiting.into_iter().for_each(|(_, job)| job.fail(cause));
        self.doorbell.notify();
    }

    /// Counts a work that is about to be issued.
    ///
    /// # Errors
    /// `OutOfMemory` where too many are outstanding, `NotInitialized` once the queue is closed.
    pub fn begin_work(&self) -> Result<()> {
        let before = self.outstanding_works.fetch_add(1, Ordering::Relaxed);
        if before < MAX_WORKS {
            return Ok(());
        }
        // A thread may wait for the last work to end.
        self.end_work();
        if before & CLOSED != 0 {
            let message =
                "the group is being left: no further asynchronous operation can be issued";
            return Err(Error::new(ErrorKind::NotInitialized, message));
        }
        let message = format!(
            "{MAX_WORKS} asynchronous operations of the group are outstanding, which is the most there \
             may be: wait for some of them first"
        );
        Err(Error::new(ErrorKind::OutOfMemory, message))
    }

    /// Lets no further work begin.
    pub fn close(&self) {
        self.outstanding_works.fetch_or(CLOSED, Ordering::AcqRel);
    }

    /// Where works that end are listed, if anywhere.
    pub(super) fn events(&self) -> Option<&Arc<CompletionEvents>> {
        self.events.get()
    }

    /// Has works listed from now on; the first list stays.
    pub(super) fn set_events(&self, events: Arc<CompletionEvents>) {
        drop(self.events.set(events));
    }

    /// Counts a work, however many there are.
    pub fn add_work(&self) {
        self.outstanding_works.fetch_add(1, Ordering::Relaxed);
    }

    /// A work has ended, or was not issued after all.
    pub fn end_work(&self) {
        self.outstanding_works.fetch_sub(1, Ordering::Release);
        self.doorbell.notify();
    }

    /// The number of works that have been issued and have not ended.
    pub fn outstanding_works(&self) -> u64 {
        self.outstanding_works.load(Ordering::Acquire) & !CLOSED
    }

    /// Waits until all works have ended; false where the limit came first.
    pub fn wait_for_works(&self, limit: &Deadline) -> bool {
        let ready = || (self.outstanding_works() == 0).then_some(());
        wait_until(&self.doorbell, WaitPolicy::SLEEP_SOON, limit, || None, ready).is_ok()
    }

    /// Under the lock, whenever the list has changed.
    fn publish_first(&self, jobs: &WaitingJobs) {
        let first = jobs.waiting.front().map_or(NO_JOB, |(ticket, _)| ticket.number);
        self.first_job.store(first, Ordering::Relaxed);
    }

    fn lock_jobs(&self) -> MutexGuard<'_, WaitingJobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn<'_> {
    /// Ends the turn without telling anybody, for whoever rings the bell soon: by the end of a
    /// work, which follows.
    pub fn end_without_wake(self) {
        self.queue.turns.end(self.count);
        // Not the drop, which would end a second turn.
        let _ended = std::mem::ManuallyDrop::new(self);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.queue.turns.end(self.count);
        fence_after_rmw();
        self.queue.doorbell.notify_fenced();
    }
}
