//! The run queue of a group: operations start in the order in which they were issued, one at a
//! time.
//!
//! Issuing takes a ticket; the ticket's number plus one is the operation's sequence number. A
//! *blocking* call takes a ticket and waits on its own thread until all earlier operations have
//! ended. A single caller pays one `fetch_add` and no hand-off between threads. An *asynchronous*
//! call leaves a [`QueueJob`] in the queue. The first available thread runs the job to its end: a
//! blocking caller that waits for its turn, a thread that waits for a work, or the queue's
//! worker. Only the worker takes every job. The other threads must return by a deadline, so
//! they take no job with a later deadline.
//!
//! A ticket may have several consecutive numbers, for a call that runs several operations in one
//! turn. Each operation has its own sequence number, and the turn of the next ticket begins after
//! the last of them.
//!
//! # Order
//! All numbers come from one counter by `fetch_add`, so there is one order. If one issue happens
//! before another in the program, it has the lower number. The number of a job is taken under the
//! lock of the job list, and the job enters the list before the lock is released. Therefore the
//! list is sorted.
//!
//! # Mutual exclusion
//! `ended` counts the numbers whose turns have ended. The turn of number n begins when `ended`
//! becomes n. Exactly one thread may act on n: the thread that took the ticket, or the thread that
//! took the job from the list. A job is taken only under the lock and only while `ended` is n. Only
//! the thread that holds the turn advances `ended` (release), and the thread with the next turn
//! reads it (acquire). Therefore each operation sees all effects of the earlier operations.
//!
//! # No lost wake-up
//! A waiter polls `ended`, the number of the first job (`first_job`, a copy outside the lock) and
//! the outcome of works. Each of them is written before the doorbell is rung. The doorbell's fences
//! ensure that either the waiter's last poll before its sleep sees the change, or the notifier sees
//! the sleeper (see `wait::doorbell`).
//!
//! If a job's number is taken but the job is not in the list yet, its notification is still to
//! come. While there are jobs there is a worker: it starts before the first job enters the list,
//! and it ends only under the lock and with an empty list. A ticket whose caller has given up never
//! ends its turn. In that case the group has failed, and the later jobs complete with that error
//! instead of running.

mod turns;

pub use turns::{Ticket, Turn};

#[cfg(all(test, loom))]
mod models;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

use crate::api::work::events::CompletionEvents;
use crate::base::deadline::{Deadline, LazyDeadline};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::sync::{AtomicU64, Mutex, MutexGuard, Ordering, unpoisoned};
use crate::process::thread;
use crate::wait::doorbell::Doorbell;
use crate::wait::{WaitInterrupt, WaitPolicy, wait_until};
use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use turns::TurnCounters;

/// The maximum number of outstanding works of a group.
pub const MAX_WORKS: u64 = 65_536;

/// A bit in the number of outstanding works. If it is set, no further work may begin.
const CLOSED: u64 = 1 << 63;

/// The value of `first_job` if there is no job.
const NO_JOB: u64 = u64::MAX;

/// The time for which a worker without jobs stays.
const IDLE_TIMEOUT: Duration = Duration::from_millis(100);

/// An asynchronous operation that waits for its turn. Exactly one of the consuming methods is
/// called, with no lock held.
pub trait QueueJob: Send + Debug {
    /// Returns the operation's deadline.
    fn deadline(&self) -> &Deadline;

    /// Returns the failure of the operation's group, if it has failed.
    fn failure(&self) -> Option<Error>;

    /// Runs the operation and ends the turn.
    fn run(self: Box<Self>, turn: Turn<'_>);

    /// Fails the group, because the deadline passed before the turn.
    fn expire(self: Box<Self>);

    /// Completes the operation with the failure of its group.
    fn fail(self: Box<Self>, cause: &Error);
}

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
    /// The number of the first job, or `NO_JOB`. Written under the lock.
    first_job: AtomicU64,
    /// The number of works that were issued and have not ended, and the bit `CLOSED`.
    outstanding_works: AtomicU64,
    /// The list of completion events, once the caller has requested a descriptor.
    events: OnceLock<Arc<CompletionEvents>>,
    /// Rung when a job is added. An idle worker waits on this doorbell, so that blocking calls need
    /// not wake it.
    worker_doorbell: Doorbell,
}

/// A job together with its turn.
#[derive(Debug)]
pub struct ClaimedJob<'a> {
    job: Box<dyn QueueJob>,
    turn: Turn<'a>,
}

/// The result of a poll by a caller that waits for its turn.
enum TurnOrJob<'a> {
    Turn(Turn<'a>),
    Job(ClaimedJob<'a>),
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

    /// Takes a ticket for a job of `count` operations and appends the job. `make` creates the job
    /// for the ticket.
    ///
    /// # Errors
    /// `System` if no worker can be started; then no number was taken.
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

    /// Returns the number of issued operations.
    pub fn issued(&self) -> u64 {
        self.turns.issued.load(Ordering::Relaxed)
    }

    /// Returns whether the turn of the ticket has begun, so that a wait for it returns immediately.
    pub fn has_turn(&self, ticket: &Ticket) -> bool {
        self.turns.is_turn_of(ticket.number)
    }

    /// Waits for the ticket's turn. Runs the earlier jobs whose deadlines are not later than
    /// `deadline`.
    ///
    /// # Errors
    /// The reason why the wait ended without the turn.
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

    /// Takes a ticket if its turn begins immediately, for an operation that runs on the calling
    /// thread. This is the case of a single caller.
    pub fn try_issue_with_turn(&self) -> Option<(Ticket, Turn<'_>)> {
        let number = self.turns.try_take_turn()?;
        Some((Ticket { number, count: 1 }, Turn { turns: &self.turns, count: 1 }))
    }

    /// Waits in [`RunQueue::wait_turn`] when earlier operations have not ended.
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
        loop {
            match wait_until(
                &self.turns.doorbell,
                WaitPolicy::SLEEP_SOON,
                deadline,
                &failure,
                ready,
            )? {
                TurnOrJob::Turn(turn) => return Ok(turn),
                TurnOrJob::Job(claim) => claim.run(),
            }
        }
    }

    /// Waits until `is_over` holds, which must depend only on works of this queue. Until then, runs
    /// the jobs whose deadlines are not later than the wait's. `own_operation` is an operation of
    /// this queue by sequence number, with its deadline: if the deadline passes before its turn,
    /// its group fails. Returns false if the limit passed first.
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
            // A job with a later deadline could delay both the limit and the operation's own
            // deadline.
            let ready = || {
                if is_over() {
                    Some(None)
                } else {
                    self.claim_first_job(Some(first_deadline)).map(Some)
                }
            };
            match wait_until(
                &self.turns.doorbell,
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

    /// Takes the first job if its turn has begun and its deadline is not later than the limit, if
    /// there is a limit.
    fn claim_first_job(&self, limit: Option<&Deadline>) -> Option<ClaimedJob<'_>> {
        if !self.turns.is_turn_of(self.first_job.load(Ordering::Relaxed)) {
            return None;
        }
        let mut jobs = self.lock_jobs();
        let (ticket, job) = jobs.waiting.front()?;
        // The order of the two reads makes a deadline never earlier than itself.
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

    /// Removes a waiting job whose deadline has passed, which fails its group. A running job is not
    /// affected.
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

    /// Returns the failure of the group of the first waiting job, if it has failed.
    fn first_job_failure(&self) -> Option<Error> {
        self.lock_jobs().waiting.front().and_then(|(_, job)| job.failure())
    }

    /// Completes all waiting jobs with the failure of their group, and wakes all waiters so that
    /// they check for it.
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

    /// Counts a work that is issued next.
    ///
    /// # Errors
    /// `OutOfMemory` if too many works are outstanding, `NotInitialized` once the queue is closed.
    pub fn begin_work(&self) -> Result<()> {
        let before = self.outstanding_works.fetch_add(1, Ordering::Relaxed);
        if before < MAX_WORKS {
            return Ok(());
        }
        // This call also notifies: a thread may wait until no work is outstanding.
        self.end_work();
        if before & CLOSED != 0 {
            let message = "dist_finalize is leaving the group: no further asynchronous operation can be issued";
            return Err(Error::new(ErrorKind::NotInitialized, message));
        }
        let message = format!(
            "{MAX_WORKS} asynchronous operations of the group are outstanding, which is the \
             maximum: wait for some of them first"
        );
        Err(Error::new(ErrorKind::OutOfMemory, message))
    }

    /// Refuses further works from now on.
    pub fn close(&self) {
        self.outstanding_works.fetch_or(CLOSED, Ordering::AcqRel);
    }

    /// Returns the list of completion events, if there is one.
    pub(super) fn events(&self) -> Option<&Arc<CompletionEvents>> {
        self.events.get()
    }

    /// Lists completed works from now on. If a list exists, it stays.
    pub(super) fn set_events(&self, events: Arc<CompletionEvents>) {
        drop(self.events.set(events));
    }

    /// Counts a work without checking the maximum.
    pub fn add_work(&self) {
        self.outstanding_works.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a work as ended, or as not issued.
    pub fn end_work(&self) {
        self.outstanding_works.fetch_sub(1, Ordering::Release);
        self.turns.doorbell.notify();
    }

    /// Returns the number of works that were issued and have not ended.
    pub fn outstanding_works(&self) -> u64 {
        self.outstanding_works.load(Ordering::Acquire) & !CLOSED
    }

    /// Waits until all works have ended. Returns false if the limit passed first.
    pub fn wait_for_works(&self, limit: &Deadline) -> bool {
        let ready = || (self.outstanding_works() == 0).then_some(());
        wait_until(&self.turns.doorbell, WaitPolicy::SLEEP_SOON, limit, || None, ready).is_ok()
    }

    /// Starts the worker: a thread that runs jobs for which no other thread waits. It holds a
    /// reference to the queue and none to the group. It ends after `IDLE_TIMEOUT` without jobs.
    ///
    /// # Errors
    /// `System` if no further thread can be started.
    fn start_worker(self: &Arc<Self>) -> Result<()> {
        let queue = Arc::clone(self);
        thread::start("dist-worker", move || {
            while queue.has_jobs_within(IDLE_TIMEOUT) || !queue.try_retire() {
                queue.run_jobs();
            }
        })
    }

    /// Waits until there is a job, even if its turn has not begun. Returns false after `time`.
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

    /// Marks the worker as ended unless there is a job. Returns true if the worker must end.
    fn try_retire(&self) -> bool {
        let mut jobs = self.lock_jobs();
        jobs.has_worker = !jobs.waiting.is_empty();
        !jobs.has_worker
    }

    /// Runs the jobs in the order of their turns until none is left.
    fn run_jobs(&self) {
        // There is no limit here: the worker also takes a job without a deadline.
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

    /// Expires the first job if its deadline has passed: the operations before it took too long.
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

    /// Updates `first_job`. Called under the lock after each change of the list.
    fn publish_first(&self, jobs: &WaitingJobs) {
        let first = jobs.waiting.front().map_or(NO_JOB, |(ticket, _)| ticket.number);
        self.first_job.store(first, Ordering::Relaxed);
    }

    fn lock_jobs(&self) -> MutexGuard<'_, WaitingJobs> {
        unpoisoned(self.jobs.lock())
    }
}
