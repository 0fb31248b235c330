//! A work: an operation that was issued and that somebody may wait for.
//!
//! A work goes from pending to done exactly once and keeps its outcome for ever. While it is pending it keeps its group
//! alive (a collective's job does so in the queue, a message's work itself); afterwards it keeps nothing but the
//! outcome, so that works outlive their groups. Whoever sees that a work is done sees what the operation has written,
//! and nobody touches the caller's buffers any more: the outcome is stored with release and read with acquire.
//!
//! Must not know: how a collective runs, or how a message travels.

use super::callbacks::{self, Callback, Function};
use super::debug::loans;
use super::error_file;
use super::group::Group;
use super::point_to_point::Message;
use super::queue::RunQueue;
use super::recorder::{self, Record};
use crate::base::backtrace;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use crate::base::gpu::{Flight, FlightSlot};
use crate::base::ids::Rank;
use crate::base::log::Level;
use crate::base::sync::{AtomicBool, AtomicU32, Mutex, MutexGuard, Ordering};
use crate::transport::{Completion, Delivery, OpKind};
use crate::wait::watch::{Seconds, Watch};
use std::backtrace::Backtrace;
use std::fmt;
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// What a work is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkKind {
    /// A collective operation.
    Collective(OpKind),
    /// A message to or from another rank.
    Message(Message),
    /// Several operations that were issued together.
    Batch,
}

/// What a wait found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The work is done.
    Done,
    /// It goes on.
    Pending,
}

/// What is done when a work ends.
pub(super) enum Then {
    /// At once, on the thread that ends the work; must not block.
    Now(Function),
    /// On the callback thread.
    Call(Callback),
}

/// How a work ended, and when.
#[derive(Clone, Debug)]
struct Ended {
    result: Result<Option<Delivery>>,
    at: Instant,
}

enum State {
    Pending(Vec<Then>),
    Done(Arc<Ended>),
}

/// Pending, then done: the change happens once, whoever tries.
struct Outcome {
    /// 1 once `state` says that it is done, for those who only ask.
    done: AtomicU32,
    state: Mutex<State>,
}

/// What is known from the time of issue on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Issue {
    pub(super) sequence: u64,
    /// It begins with the issue.
    pub(super) deadline: Deadline,
}

/// What a message's work keeps while it is pending.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) group: Arc<Group>,
    pub(super) record: Record,
}

/// An operation that was issued, or is about to be.
#[derive(Debug)]
pub struct Work {
    kind: WorkKind,
    /// Its caller waits for it from the beginning.
    is_awaited: AtomicBool,
    /// Its group's; a batch's own, in which nothing ever runs. Where it is waited for.
    queue: Arc<RunQueue>,
    issue: OnceLock<Issue>,
    /// Where in the program, where that is wanted.
    issued_at: OnceLock<Arc<Backtrace>>,
    outcome: Outcome,
    /// A message's, from issue until it is done.
    held: Mutex<Option<Held>>,
    /// The rank of the job that a message's error blames.
    blamed: OnceLock<Rank>,
    /// A batch's, from issue until it is done.
    members: Mutex<Vec<Arc<Self>>>,
    /// On a device: what tells that it is done with the operation.
    flight: FlightSlot,
    /// A batch's: those of its members.
    flights: Mutex<Vec<Arc<dyn Flight>>>,
}

impl Outcome {
    fn new() -> Self {
        Self { done: AtomicU32::new(0), state: Mutex::new(State::Pending(Vec::new())) }
    }

    /// Ends it, and gives what is to be done then; `None` where it has ended before, which stays as it was.
    fn settle(&self, ended: Ended) -> Option<Vec<Then>> {
        let mut state = self.lock();
        let State::Pending(then) = &mut *state else { return None };
        let then = std::mem::take(then);
        *state = State::Done(Arc::new(ended));
        self.done.store(1, Ordering::Release);
        Some(then)
    }

    fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire) != 0
    }

    fn ended(&self) -> Option<Arc<Ended>> {
        match &*self.lock() {
            State::Pending(_) => None,
            State::Done(ended) => Some(Arc::clone(ended)),
        }
    }

    /// Notes what is to be done at the end; gives it back where that has come.
    fn then(&self, then: Then) -> Option<(Then, Arc<Ended>)> {
        match &mut *self.lock() {
            State::Pending(list) => {
                list.push(then);
                None
            }
            State::Done(ended) => Some((then, Arc::clone(ended))),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outcome").field("ended", &self.ended()).finish_non_exhaustive()
    }
}

impl Ended {
    /// The outcome without what only a message has.
    fn plain(&self) -> Result<()> {
        self.result.as_ref().map(drop).map_err(Clone::clone)
    }
}

impl Work {
    /// A work that has not been issued.
    pub(super) fn new(kind: WorkKind, queue: Arc<RunQueue>) -> Arc<Self> {
        Arc::new(Self {
            kind,
            is_awaited: AtomicBool::new(false),
            queue,
            issue: OnceLock::new(),
            issued_at: OnceLock::new(),
            outcome: Outcome::new(),
            held: Mutex::new(None),
            blamed: OnceLock::new(),
            members: Mutex::default(),
            flight: FlightSlot::new(),
            flights: Mutex::default(),
        })
    }

    /// Notes that it is issued, which happens once.
    pub(super) fn issued(&self, sequence: u64, deadline: Deadline) {
        let fresh = self.issue.set(Issue { sequence, deadline });
        debug_assert!(fresh.is_ok(), "a work was issued twice");
        if let Some(place) = backtrace::capture() {
            drop(self.issued_at.set(Arc::new(place)));
        }
    }

    /// Keeps what a message needs until it is done.
    pub(super) fn hold(&self, held: Held) {
        *lock(&self.held) = Some(held);
    }

    /// Issues it as the work of a batch, which ends when its members have.
    pub(super) fn issued_as_batch(&self, members: Vec<Arc<Self>>) {
        *lock(&self.members) = members;
        self.queue.count_work();
        self.issued(1, Deadline::never());
    }

    /// Ends it. A work that has ended before stays as it was.
    pub(super) fn end(&self, result: Result<Option<Delivery>>) {
        lock(&self.members).clear();
        // Before the outcome: who sees that may use the buffers, and count on the group not being kept by this work.
        loans::give_back(self);
        let held = lock(&self.held).take();
        if let Some(Held { group, record }) = held {
            record.end(&result.as_ref().map(drop).map_err(Clone::clone));
            if let Some(rank) = result.as_ref().err().and_then(|error| group.blamed(error)) {
                // It ends once, so that nobody has told before.
                let _first = self.blamed.set(rank);
            }
            callbacks::let_go(group);
        }
        let ended = Ended { result, at: Instant::now() };
        let outcome = ended.plain();
        let Some(then) = self.outcome.settle(ended) else { return };
        for then in then {
            run_then(then, &outcome);
        }
        if self.issue.get().is_some() {
            self.queue.work_ends();
        }
    }

    /// Says, before it is issued, that its caller waits for it as soon as it is.
    pub fn will_be_awaited(&self) {
        self.is_awaited.store(true, Ordering::Relaxed);
    }

    /// What it is about.
    pub fn kind(&self) -> WorkKind {
        self.kind
    }

    /// True once it has ended.
    pub fn is_done(&self) -> bool {
        self.outcome.is_done()
    }

    /// Its outcome, once there is one.
    pub fn outcome(&self) -> Option<Result<()>> {
        let outcome = self.is_done().then(|| self.outcome.ended())?.map(|ended| ended.plain())?;
        if let Err(error) = &outcome {
            // Only now, for a message: its end is no place to wait for a disk.
            error_file::note(error, self.blamed.get().copied());
        }
        Some(outcome)
    }

    /// The number of the operation: for collectives that in its group, for messages one of their own. `None` before
    /// it is issued.
    pub fn sequence(&self) -> Option<u64> {
        self.issue.get().map(|issue| issue.sequence)
    }

    /// Where in the program it was issued, where that was wanted.
    pub fn issued_at(&self) -> Option<Arc<Backtrace>> {
        self.issued_at.get().cloned()
    }

    /// The time from its issue until it ended, or until now.
    pub fn elapsed(&self) -> Duration {
        let Some(issue) = self.issue.get() else { return Duration::ZERO };
        let end = self.outcome.ended().map_or_else(Instant::now, |ended| ended.at);
        end.saturating_duration_since(issue.deadline.started())
    }

    /// Who sent the message that was received, or who gets the one that is sent.
    pub fn source(&self) -> Option<Rank> {
        self.delivery().map(|delivery| delivery.peer)
    }

    /// The message's tag.
    pub fn tag(&self) -> Option<u32> {
        self.delivery().map(|delivery| delivery.tag)
    }

    /// The number of elements that were received.
    pub fn received_count(&self) -> Option<usize> {
        let WorkKind::Message(message) = self.kind else { return None };
        let delivery = self.delivery().filter(|_| !message.is_outgoing)?;
        Some(delivery.bytes / message.dtype.size())
    }

    fn delivery(&self) -> Option<Delivery> {
        self.outcome.ended()?.result.as_ref().ok().copied().flatten()
    }

    /// Waits until it has ended or the limit has passed, and does meanwhile what can be done for it on this thread.
    /// Any thread, any number of times.
    ///
    /// # Errors
    /// The operation's own error, which stays; `InvalidArgument` for a work of a batch that has not ended, and for a
    /// pending one inside a completion callback.
    pub fn wait(&self, limit: &Deadline) -> Result<Progress> {
        self.wait_and_see(limit).inspect_err(|_| recorder::dump_failures())
    }

    fn wait_and_see(&self, limit: &Deadline) -> Result<Progress> {
        if let Some(outcome) = self.outcome() {
            return outcome.map(|()| Progress::Done);
        }
        if limit.has_passed() {
            return Ok(Progress::Pending);
        }
        callbacks::refuse_to_block("waiting for a pending work")?;
        let Some(issue) = self.issue.get() else {
            let message =
                "the work belongs to a batch that has not been issued: call dist_batch_end first";
            return Err(Error::invalid(message));
        };
        match self.kind {
            WorkKind::Collective(_) => {
                let mine = Some((issue.sequence, issue.deadline));
                self.queue.wait_for(|| self.is_done(), limit, mine);
            }
            WorkKind::Message(_) => self.attend(limit),
            WorkKind::Batch => self.wait_for_members(limit),
        }
        self.outcome().map_or(Ok(Progress::Pending), |outcome| outcome.map(|()| Progress::Done))
    }

    /// Waits until it has ended, and until the device is done with it where it was enqueued on one. Any thread, any number of
    /// times.
    ///
    /// # Errors
    /// As [`Work::wait`]; the failure of its group, if that came before the device was done.
    pub fn synchronize(&self, limit: &Deadline) -> Result<Progress> {
        if self.wait(limit)? == Progress::Pending {
            return Ok(Progress::Pending);
        }
        let mut flights = lock(&self.flights).clone();
        flights.extend(self.flight.get().cloned());
        if !flights.is_empty() {
            callbacks::refuse_to_block("waiting for a device")?;
        }
        for flight in flights {
            if !flight.wait(limit).inspect_err(|_| recorder::dump_failures())? {
                return Ok(Progress::Pending);
            }
        }
        Ok(Progress::Done)
    }

    /// Where its operation on a device is put.
    pub(super) fn flight(&self) -> &FlightSlot {
        &self.flight
    }

    /// Waits for the device also for a member of this batch.
    pub(super) fn share_flight(&self, member: &Self) {
        if let Some(flight) = member.flight.get() {
            lock(&self.flights).push(Arc::clone(flight));
        }
    }

    /// Lets the engine that carries the message make progress on this thread.
    fn attend(&self, limit: &Deadline) {
        let group = lock(&self.held).as_ref().map(|held| Arc::clone(&held.group));
        if let Some(engine) = group.as_ref().and_then(|group| group.backend.messages()) {
            let mut watch = Watch::default();
            while !self.is_done() && !limit.has_passed() {
                match watch.look(|lasted| self.tell(lasted)) {
                    Some(most) => engine.attend(&|| self.is_done(), &limit.capped(most)),
                    None => engine.attend(&|| self.is_done(), limit),
                }
            }
        } else {
            self.queue.wait_for(|| self.is_done(), limit, None);
        }
    }

    /// A long wait for a message, for the log.
    #[cold]
    fn tell(&self, lasted: Seconds) {
        let group = lock(&self.held).as_ref().map(|held| Arc::clone(&held.group));
        let (Some(group), WorkKind::Message(message)) = (group, self.kind) else { return };
        let last = message.peer.and_then(|peer| group.backend.last_seen(peer));
        let last = last.map(|last| format!("; that rank {last}")).unwrap_or_default();
        crate::log!(Level::Warn, "{message} on {} has waited {lasted}{last}", group.whom());
        callbacks::let_go(group);
    }

    /// Waits for one after the other; the last one that ends ends the batch.
    fn wait_for_members(&self, limit: &Deadline) {
        let members = lock(&self.members).clone();
        // An error is the batch's own, or stands behind an earlier one.
        members.iter().for_each(|member| drop(member.wait(limit)));
        self.queue.wait_for(|| self.is_done(), limit, None);
    }

    /// Calls a function once the work has ended, on the callback thread, never inside this call.
    ///
    /// # Errors
    /// `OutOfMemory` where too many callbacks are registered, `System` where their thread cannot be started.
    pub fn on_complete(&self, function: impl FnOnce(&Result<()>) + Send + 'static) -> Result<()> {
        let callback = callbacks::register(function)?;
        self.then(Then::Call(callback));
        Ok(())
    }

    pub(super) fn then(&self, then: Then) {
        if let Some((then, ended)) = self.outcome.then(then) {
            run_then(then, &ended.plain());
        }
    }
}

impl Completion for Work {
    fn is_awaited(&self) -> bool {
        self.is_awaited.load(Ordering::Relaxed)
    }

    fn complete(&self, outcome: Result<Delivery>) {
        self.end(outcome.map(Some).map_err(|error| self.explain(error)));
    }
}

impl Work {
    /// An error of a message, with what the engine does not know of it.
    pub(super) fn explain(&self, error: Error) -> Error {
        let group = lock(&self.held).as_ref().map(|held| held.group.whom());
        match (self.kind, group) {
            (WorkKind::Message(message), Some(group)) => {
                error.context(format_args!("{message} on {group}"))
            }
            _ => error,
        }
    }
}

fn run_then(then: Then, outcome: &Result<()>) {
    match then {
        Then::Now(hook) => hook(outcome),
        Then::Call(callback) => callback.post(outcome.clone()),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::base::sync::AtomicUsize;
    use loom::sync::Arc;
    use loom::thread;

    /// Two threads end it, a third registers what is to be done then: one ends it, and it is done once.
    #[test]
    fn loom_a_work_ends_once() {
        loom::model(|| {
            let shared = Arc::new((Outcome::new(), AtomicUsize::new(0), AtomicUsize::new(0)));
            let enders: Vec<_> = (0..2)
                .map(|_| {
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || {
                        // What the operation has written.
                        shared.2.store(7, Ordering::Relaxed);
                        let ended = Ended { result: Ok(None), at: Instant::now() };
                        let Some(then) = shared.0.settle(ended) else { return 0 };
                        then.into_iter().for_each(|then| run_then(then, &Ok(())));
                        1
                    })
                })
                .collect();
            let counter = Arc::clone(&shared);
            let hook = Then::Now(Box::new(move |_: &Result<()>| {
                counter.1.fetch_add(1, Ordering::Relaxed);
            }));
            if let Some((then, ended)) = shared.0.then(hook) {
                run_then(then, &ended.plain());
            }
            if shared.0.is_done() {
                assert_eq!(shared.2.load(Ordering::Relaxed), 7);
            }
            let ends: usize = enders.into_iter().map(|ender| ender.join().unwrap()).sum();
            assert_eq!((ends, shared.1.load(Ordering::Relaxed)), (1, 1));
        });
    }
}
