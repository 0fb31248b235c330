//! The run queue of a group: the group's collectives run on this rank one at a time, in the order
//! in which they were issued.
//!
//! The issue of an operation takes a [`Ticket`], which has a number. The operation may run when all
//! operations with lower numbers have ended. From then until the operation ends, the ticket has its
//! [`Turn`]. The sequence number of the operation is the ticket's number plus one.
//!
//! * A *blocking* call takes a ticket and waits on its own thread for its turn. If the queue is
//!   idle, this costs one `fetch_add` and no hand-off between threads.
//! * An *asynchronous* call takes a ticket and leaves a [`QueueJob`] in the queue. One of these
//!   threads runs the job in its turn: a blocking caller that waits for its own turn, a thread that
//!   waits for a work, or the queue's worker thread. The worker takes any job. The other threads
//!   must return by a deadline, so they do not take a job with a later deadline.
//!
//! A call may run several operations in one turn. Its ticket then has several consecutive numbers,
//! one for each operation. For example:
//!
//! | ticket | numbers | turn begins when `ended` is | sequence numbers |
//! |---|---|---|---|
//! | first call | 0 | 0 | 1 |
//! | call with two operations | 1, 2 | 1 | 2, 3 |
//! | next call | 3 | 3 | 4 |
//!
//! # Order
//! All numbers come from one counter by `fetch_add`, so all operations of the group have one order.
//! If the program issues one operation before another, the first has the lower number. For a job,
//! the number is taken and the job is appended to the job list under the list's lock. Therefore the
//! job list is sorted by number.
//!
//! # Mutual exclusion
//! The counter `ended` counts the numbers whose turns have ended. The turn of the ticket with
//! number n begins when `ended` becomes n. Exactly one thread uses this turn:
//! * For a blocking call, this is the thread that took the ticket.
//! * For a job, this is the thread that takes the job from the list. A job with number n is taken
//!   only under the lock, and only while `ended` is n.
//!
//! Only the thread with the turn increases `ended`, with release. The thread with the next turn
//! reads `ended` with acquire. Therefore each operation sees all effects of the earlier operations.
//!
//! # No lost wake-up
//! A waiting thread polls three things: `ended`; the number of the first job (`first_job`, a copy
//! that is read without the lock); and the outcomes of works. A thread that changes one of them
//! first stores the change, and then notifies the doorbell (a futex word on which the waiting
//! thread sleeps). The fences of the doorbell ensure that one of two cases holds (see
//! `wait::doorbell`). Either the last poll of the waiting thread before its sleep sees the change,
//! or the notifying thread sees that a thread sleeps and wakes it.
//!
//! * If the number of a job was taken but the job is not in the list yet, its notification is still
//!   to come.
//! * While there are jobs, there is a worker. It starts before the first job enters the list, and
//!   ends only under the lock and only if the list is empty.
//! * If a blocking caller stops waiting for its turn, its turn never ends. Then the group has
//!   failed. The later jobs do not run, but end with the group's failure.

mod enqueued_messages;
mod issue_counter;
mod job;
mod outstanding_works;
mod turns;

pub use job::{ClaimedJob, QueueJob};
pub use outstanding_works::MAX_WORKS;
pub use turns::{Ticket, Turn};

#[cfg(all(test, loom))]
mod models;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

use crate::api::observe::call_history::CallHistory;
use crate::api::work::events::CompletionEvents;
use crate::base::deadline::{Deadline, LazyDeadline};
use crate::base::error::{Error, Result};
use crate::base::sync::{AtomicU64, Mutex, MutexGuard, Ordering, unpoisoned};
use crate::process::thread;
use crate::wait::blocked_thread::BlockedWatch;
use crate::wait::doorbell::Doorbell;
use crate::wait::{WaitInterrupt, WaitPolicy, wait_until, wait_until_watched};
use enqueued_messages::EnqueuedMessages;
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use turns::TurnCounters;

/// The value of `first_job` if the job list is empty.
const NO_JOB: u64 = u64::MAX;

/// The time after which a worker without jobs ends.
const IDLE_TIMEOUT: Duration = Duration::from_millis(100);

/// The jobs that wait for their turn, sorted by number.
#[derive(Debug, Default)]
struct WaitingJobs {
    waiting: VecDeque<(Ticket, Box<dyn QueueJob>)>,
    has_worker: bool,
}

/// The run queue of one group.
#[derive(Debug)]
pub struct RunQueue {
    turns: TurnCounters,
    jobs: Mutex<WaitingJobs>,
    /// The number of the first job in the list, or `NO_JOB`. Written only under the lock.
    first_job: AtomicU64,
    /// The number of works that were issued and have not ended. The highest bit is `CLOSED`.
    outstanding_works: AtomicU64,
    /// The list of completion events. Set when the caller first requests its descriptor.
    events: OnceLock<Arc<CompletionEvents>>,
    /// The call history of the group; not set in the queue of a batch.
    pub(in crate::api) history: OnceLock<Arc<CallHistory>>,
    /// Set with the first message that is enqueued on a device.
    enqueued_messages: OnceLock<Box<Mutex<EnqueuedMessages>>>,
    /// The worker sleeps on this doorbell while the job list is empty. It is notified when a job is
    /// added. An idle worker does not sleep on the doorbell of `turns`, because blocking calls
    /// would then wake it at the end of each turn.
    worker_doorbell: Doorbell,
}

/// The result of a poll by a caller that waits for its turn.
enum TurnOrJob<'a> {
    Turn(Turn<'a>),
    Job(ClaimedJob<'a>),
}

impl Default for RunQueue {
    fn default() -> Self {
        Self {
            turns: TurnCounters::default(),
            jobs: Mutex::default(),
            first_job: AtomicU64::new(NO_JOB),
            outstanding_works: AtomicU64::new(0),
            events: OnceLock::new(),
            history: OnceLock::new(),
            enqueued_messages: OnceLock::new(),
            worker_doorbell: Doorbell::default(),
        }
    }
}

impl RunQueue {
    /// Takes a ticket for an operation that runs on the calling thread.
    pub fn issue(&self) -> Ticket {
        self.issue_several(1)
    }

    /// Takes a ticket for a call of `count` operations.
    pub fn issue_several(&self, count: u64) -> Ticket {
        Ticket { number: self.turns.take_numbers(count), count }
    }

    /// Takes a ticket for a job of `count` operations and appends the job to the list. `make`
    /// creates the job from the ticket.
    ///
    /// # Errors
    /// `System` if no worker can be started. In this case no number was taken.
    pub fn enqueue(
        self: &Arc<Self>,
        count: u64,
        make: impl FnOnce(&Ticket) -> Box<dyn QueueJob>,
    ) -> Result<()> {
        let mut jobs = self.lock_jobs();
        if !jobs.has_worker {
            self.start_worker()?;
            jobs.has_worker = true;
        }
        let ticket = self.issue_several(count);
        let job = make(&ticket);
        jobs.waiting.push_back((ticket, job));
        self.publish_first(&jobs);
        drop(jobs);
        self.turns.doorbell.notify();
        self.worker_doorbell.notify_fenced();
        Ok(())
    }

    /// Returns whether all issued operations have ended.
    pub fn is_idle(&self) -> bool {
        self.turns.is_turn_of(self.issued())
    }

    /// Returns the number of operations that were issued.
    pub fn issued(&self) -> u64 {
        self.turns.issued.load(Ordering::Relaxed)
    }

    /// Returns whether the turn of the ticket has begun.
    pub fn has_turn(&self, ticket: &Ticket) -> bool {
        self.turns.is_turn_of(ticket.number)
    }

    /// Waits for the ticket's turn. While it waits, this thread runs earlier jobs whose deadlines
    /// are not later than `deadline`.
    ///
    /// # Errors
    /// The reason why the wait ended without the turn: the deadline, or the error that `failure`
    /// returned.
    pub fn wait_turn(
        &self,
        ticket: &Ticket,
        deadline: &LazyDeadline,
        failure: impl Fn() -> Option<Error>,
    ) -> std::result::Result<Turn<'_>, WaitInterrupt> {
        if self.has_turn(ticket) {
            return Ok(Turn { turns: &self.turns, count: ticket.count });
        }
        self.wait_turn_slow(ticket, deadline.get_or_start(), failure)
    }

    /// Takes a ticket for an operation that runs on the calling thread, if its turn begins
    /// immediately. Otherwise returns `None` and takes no number. With a single caller, the turn
    /// always begins immediately.
    pub fn try_issue_with_turn(&self) -> Option<(Ticket, Turn<'_>)> {
        let number = self.turns.try_take_turn()?;
        Some((Ticket { number, count: 1 }, Turn { turns: &self.turns, count: 1 }))
    }

    /// The part of [`RunQueue::wait_turn`] for the case that earlier operations have not ended.
    #[cold]
    fn wait_turn_slow(
        &self,
        ticket: &Ticket,
        deadline: &Deadline,
        failure: impl Fn() -> Option<Error>,
    ) -> std::result::Result<Turn<'_>, WaitInterrupt> {
        let ready = || {
            if self.turns.is_turn_of(ticket.number) {
                return Some(TurnOrJob::Turn(Turn { turns: &self.turns, count: ticket.count }));
            }
            self.claim_first_job(Some(deadline)).map(TurnOrJob::Job)
        };
        let (doorbell, policy) = (&self.turns.doorbell, WaitPolicy::SLEEP_SOON);
        let mut watch = BlockedWatch::default();
        loop {
            let watch = || watch.check();
            match wait_until_watched(doorbell, policy, deadline, &failure, ready, watch)? {
                TurnOrJob::Turn(turn) => return Ok(turn),
                TurnOrJob::Job(claim) => claim.run(),
            }
        }
    }

    /// Waits until `is_over` returns true. Returns false if the limit passes before that. `is_over`
    /// must depend only on works of this queue. While it waits, this thread runs jobs whose
    /// deadlines are not later than the limit.
    ///
    /// `own_operation` is the sequence number and the deadline of the operation for which the
    /// caller waits, if it is a collective. If its deadline passes before its turn, the operation
    /// expires and its group fails.
    pub fn wait_for(
        &self,
        is_over: impl Fn() -> bool,
        limit: &Deadline,
        mut own_operation: Option<(u64, Deadline)>,
    ) -> bool {
        let mut watch = BlockedWatch::default();
        loop {
            let own_deadline =
                own_operation.map(|(_, own)| own).filter(|own| own.remaining() < limit.remaining());
            let first_deadline = own_deadline.as_ref().unwrap_or(limit);
            // This thread takes no job with a later deadline than `first_deadline`. Such a job
            // could delay the return of this wait or the expiry of the caller's operation.
            let ready = || {
                if is_over() {
                    Some(None)
                } else {
                    self.claim_first_job(Some(first_deadline)).map(Some)
                }
            };
            let (doorbell, failure) = (&self.turns.doorbell, || self.first_job_failure());
            let watch = || watch.check();
            let policy = WaitPolicy::SLEEP_SOON;
            match wait_until_watched(doorbell, policy, first_deadline, failure, ready, watch) {
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

    /// Takes the first job if its turn has begun. With a limit, takes the job only if its deadline
    /// is not later than the limit.
    fn claim_first_job(&self, limit: Option<&Deadline>) -> Option<ClaimedJob<'_>> {
        if !self.turns.is_turn_of(self.first_job.load(Ordering::Relaxed)) {
            return None;
        }
        let mut jobs = self.lock_jobs();
        let (ticket, job) = jobs.waiting.front()?;
        // The limit's remaining time is read first. It shrinks with time, so if both are the same
        // deadline, `left` is not smaller than the second value, and the job is taken.
        let ends_too_late = |limit: &Deadline| {
            let left = limit.remaining();
            left < job.deadline().remaining()
        };
        if !self.turns.is_turn_of(ticket.number) || limit.is_some_and(ends_too_late) {
            return None;
        }
        let (ticket, job) = jobs.waiting.pop_front()?;
        self.publish_first(&jobs);
        Some(ClaimedJob { job, turn: Turn { turns: &self.turns, count: ticket.count } })
    }

    /// Removes the waiting job with this sequence number, whose deadline has passed, and fails its
    /// group. Does nothing if the job already runs.
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

    /// Returns the failure of the first waiting job's group, if the group has failed.
    fn first_job_failure(&self) -> Option<Error> {
        self.lock_jobs().waiting.front().and_then(|(_, job)| job.failure())
    }

    /// Ends all waiting jobs with the failure of their group. Wakes all waiting threads, so that
    /// they see the failure.
    pub fn fail_waiting_jobs(&self, cause: &Error) {
        let waiting = {
            let mut jobs = self.lock_jobs();
            let waiting = std::mem::take(&mut jobs.waiting);
            self.publish_first(&jobs);
            waiting
        };
        waiting.into_iter().for_each(|(_, job)| job.fail(cause));
        self.turns.doorbell.notify();
    }

    /// Returns the list of completion events, if it was created.
    pub(super) fn events(&self) -> Option<&Arc<CompletionEvents>> {
        self.events.get()
    }

    /// Sets the list of completion events, to which works are added when they complete. If a list
    /// is already set, it stays.
    pub(super) fn set_events(&self, events: Arc<CompletionEvents>) {
        drop(self.events.set(events));
    }

    /// Starts the worker, a thread that runs the jobs that no other thread takes. The worker holds
    /// a reference to the queue but not to the group. It ends after `IDLE_TIMEOUT` without jobs.
    ///
    /// # Errors
    /// `System` if the thread cannot be started.
    fn start_worker(self: &Arc<Self>) -> Result<()> {
        let queue = Arc::clone(self);
        thread::start("dist-worker", move || {
            while queue.has_jobs_within(IDLE_TIMEOUT) || !queue.try_retire() {
                queue.run_jobs();
            }
        })
    }

    /// Waits until there is a job, even if its turn has not begun. Returns false if there is no job
    /// within `time`.
    fn has_jobs_within(&self, time: Duration) -> bool {
        let has_jobs = || (self.first_job.load(Ordering::Relaxed) != NO_JOB).then_some(());
        wait_until(
            &self.worker_doorbell,
            WaitPolicy::SLEEP_SOON,
            &Deadline::after(time),
            || None,
            has_jobs,
        )
        .is_ok()
    }

    /// Marks the worker as ended unless there is a job. Returns whether the worker must end.
    fn try_retire(&self) -> bool {
        let mut jobs = self.lock_jobs();
        jobs.has_worker = !jobs.waiting.is_empty();
        !jobs.has_worker
    }

    /// Runs the jobs in the order of their turns until the job list is empty.
    fn run_jobs(&self) {
        // The worker takes jobs without a limit, because it also runs jobs without a deadline.
        let ready = || match self.first_job.load(Ordering::Relaxed) {
            NO_JOB => Some(None),
            _ => self.claim_first_job(None).map(Some),
        };
        while let Some(deadline) = self.first_deadline() {
            match wait_until(
                &self.turns.doorbell,
                WaitPolicy::SLEEP_SOON,
                &deadline,
                || self.first_job_failure(),
                ready,
            ) {
                Ok(None) => return,
                Ok(Some(claim)) => claim.run(),
                Err(WaitInterrupt::Aborted(cause)) => self.fail_waiting_jobs(&cause),
                Err(WaitInterrupt::Deadline) => self.expire_first_job(),
            }
        }
    }

    fn first_deadline(&self) -> Option<Deadline> {
        self.lock_jobs().waiting.front().map(|(_, job)| *job.deadline())
    }

    /// Expires the first job if its deadline has passed, because the operations before it took too
    /// long.
    fn expire_first_job(&self) {
        let mut jobs = self.lock_jobs();
        if jobs.waiting.front().is_none_or(|(_, job)| !job.deadline().has_passed()) {
            return;
        }
        let taken = jobs.waiting.pop_front();
        self.publish_first(&jobs);
        drop(jobs);
        if let Some((_, job)) = taken {
            job.expire();
        }
    }

    /// Updates `first_job`. Called under the lock after each change of the job list.
    fn publish_first(&self, jobs: &WaitingJobs) {
        let first = jobs.waiting.front().map_or(NO_JOB, |(ticket, _)| ticket.number);
        self.first_job.store(first, Ordering::Relaxed);
    }

    fn lock_jobs(&self) -> MutexGuard<'_, WaitingJobs> {
        unpoisoned(self.jobs.lock())
    }
}
