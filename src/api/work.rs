//! A work: an operation that was issued and that somebody may wait for.
//!
//! A work goes from pending to done exactly once and keeps its outcome for ever. While it is
//! pending it keeps its group alive (a collective's job does so in the queue, a message's work
//! itself); afterwards it keeps nothing but the outcome, so that works outlive their groups.
//! Whoever sees that a work is done sees what the operation has written, and nobody touches the
//! caller's buffers any more: the outcome is stored with release and read with acquire.
//!
//! Must not know: how a collective runs, or how a message travels.

use super::callbacks::{self, CallbackKey};
use super::debug::in_flight_buffers;
use super::error_file;
use super::group::Group;
use super::point_to_point::MessageDescriptor;
use super::queue::RunQueue;
use super::recorder::{self, OperationRecord};
use super::work_outcome::{CompletionAction, WorkEnd, WorkOutcome};
use crate::base::backtrace;
use crate::base::deadline::Deadline;
use crate::base::error::{Culprit, Error, Result};
use crate::base::gpu::{EnqueuedOperation, EnqueuedOperationSlot};
use crate::base::ids::Rank;
use crate::base::log::LogLevel;
use crate::base::sync::{AtomicBool, AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering, fence};
use crate::transport::{Completion, Delivery, OpKind, PointToPoint};
use crate::wait::slow_wait::{DisplaySeconds, SlowWaitWatch};
use std::backtrace::Backtrace;
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// What a work is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkKind {
    /// A collective operation.
    Collective(OpKind),
    /// A message to or from another rank.
    Message(MessageDescriptor),
    /// Several operations that were issued together.
    Batch,
}

/// What a wait found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkProgress {
    /// The work is done.
    Done,
    /// It goes on.
    Pending,
}

/// What is known from the time of issue on.
#[derive(Clone, Copy, Debug)]
pub(super) struct IssueInfo {
    pub(super) sequence: u64,
    /// It begins with the issue.
    pub(super) deadline: Deadline,
}

/// What a message's work keeps while it is pending.
#[derive(Debug)]
pub(super) struct PendingMessage {
    pub(super) group: Arc<Group>,
    pub(super) record: OperationRecord,
}

/// An operation that was issued, or is about to be.
#[derive(Debug)]
pub struct Work {
    kind: WorkKind,
    /// Its caller waits for it from the beginning.
    is_awaited: AtomicBool,
    /// Its group's; a batch's own, in which nothing ever runs. Where it is waited for.
    queue: Arc<RunQueue>,
    issue_info: OnceLock<IssueInfo>,
    /// Where in the program, where that is wanted.
    issue_backtrace: OnceLock<Arc<Backtrace>>,
    outcome: WorkOutcome,
    /// A message's, from issue until it is done.
    pending_message: Mutex<Option<PendingMessage>>,
    /// The rank of the job that a message's error blames.
    blamed_rank: OnceLock<Rank>,
    /// The caller's handle while there is one, else 0.
    handle: AtomicUsize,
    /// Its key among the completion events of its group, once it has been listed there.
    event_key: AtomicU64,
    /// A batch's: the queue of the group that all of its calls are of.
    single_group_queue: OnceLock<Arc<RunQueue>>,
    /// A batch's, from issue until it is done.
    members: Mutex<Vec<Arc<Self>>>,
    /// On a device: what tells that it is done with the operation.
    device_completion: EnqueuedOperationSlot,
    /// A batch's: those of its members.
    member_completions: Mutex<Vec<Arc<dyn EnqueuedOperation>>>,
}

impl Work {
    /// A work that has not been issued.
    pub(super) fn new(kind: WorkKind, queue: Arc<RunQueue>) -> Arc<Self> {
        Arc::new(Self {
            kind,
            is_awaited: AtomicBool::new(false),
            queue,
            issue_info: OnceLock::new(),
            issue_backtrace: OnceLock::new(),
            outcome: WorkOutcome::new(),
            pending_message: Mutex::new(None),
            blamed_rank: OnceLock::new(),
            handle: AtomicUsize::new(0),
            event_key: AtomicU64::new(0),
            single_group_queue: OnceLock::new(),
            members: Mutex::default(),
            device_completion: EnqueuedOperationSlot::new(),
            member_completions: Mutex::default(),
        })
    }

    /// Notes that it is issued, which happens once.
    pub(super) fn mark_issued(&self, sequence: u64, deadline: Deadline) {
        let newly_set = self.issue_info.set(IssueInfo { sequence, deadline });
        debug_assert!(newly_set.is_ok(), "a work was issued twice");
        if let Some(backtrace) = backtrace::capture() {
            drop(self.issue_backtrace.set(Arc::new(backtrace)));
        }
    }

    /// Keeps what a message needs until it is done.
    pub(super) fn keep_until_done(&self, held: PendingMessage) {
        *lock(&self.pending_message) = Some(held);
    }

    /// Issues it as the work of a batch, which ends when its members have.
    pub(super) fn mark_issued_as_batch(&self, members: Vec<Arc<Self>>) {
        *lock(&self.members) = members;
        self.queue.add_work();
        self.mark_issued(1, Deadline::never());
    }

    /// Ends it. A work that has ended before stays as it was.
    pub(super) fn end(&self, result: Result<Option<Delivery>>) {
        lock(&self.members).clear();
        // Before the outcome: who sees that may use the buffers, and count on the group not being
        // kept by this work.
        in_flight_buffers::unregister_work(self);
        let pending_message = lock(&self.pending_message).take();
        let mut result = result;
        if let Some(PendingMessage { group, record }) = pending_message {
            result = result.map_err(|error| group.with_culprit_process(error));
            record.end(&result.as_ref().map(drop).map_err(Clone::clone));
            if let Some(rank) =
                result.as_ref().err().and_then(|error| group.blamed_global_rank(error))
            {
                // It ends once, so that nobody has told before.
                let _first = self.blamed_rank.set(rank);
            }
            callbacks::release_group(group);
        }
        let ended = WorkEnd { result, time: Instant::now() };
        let outcome = ended.without_delivery();
        let Some(actions) = self.outcome.complete(ended) else { return };
        for action in actions {
            action.run(&outcome);
        }
        if self.issue_info.get().is_some() {
            self.queue.end_work();
        } else {
            // As the ring does.
            fence(Ordering::SeqCst);
        }
        if let Some(events) = self.event_queue().and_then(|queue| queue.events()) {
            events.add(self);
        }
    }

    /// The queue of the group among whose completion events it is listed.
    fn event_queue(&self) -> Option<&Arc<RunQueue>> {
        match self.kind {
            WorkKind::Batch => self.single_group_queue.get(),
            WorkKind::Collective(_) | WorkKind::Message(_) => Some(&self.queue),
        }
    }

    /// Lists it among the completion events of the group with this queue, if it is done and of that
    /// group.
    pub(super) fn report_if_done(&self, queue: &Arc<RunQueue>) {
        let is_of_group = self.event_queue().is_some_and(|own| Arc::ptr_eq(own, queue));
        if is_of_group && self.is_done() {
            queue.events().into_iter().for_each(|events| events.add(self));
        }
    }

    /// Says, before it is issued, that all calls of this batch are of the group with this queue.
    pub(super) fn set_single_group_queue(&self, queue: Arc<RunQueue>) {
        drop(self.single_group_queue.set(queue));
    }

    /// Notes the caller's handle, which is not 0; before the work is issued.
    pub fn set_handle(&self, token: usize) {
        self.handle.store(token, Ordering::Release);
    }

    /// The caller has released its handle.
    pub fn clear_handle(&self) {
        self.handle.store(0, Ordering::Release);
        if let Some(events) = self.event_queue().and_then(|queue| queue.events()) {
            events.remove(self);
        }
    }

    /// The caller's handle, or 0.
    pub(super) fn handle(&self) -> usize {
        self.handle.load(Ordering::Acquire)
    }

    /// Its key among the completion events of its group, or 0; under the lock of these.
    pub(super) fn event_key(&self) -> &AtomicU64 {
        &self.event_key
    }

    /// Says, before it is issued, that its caller waits for it as soon as it is.
    pub fn set_awaited(&self) {
        self.is_awaited.store(true, Ordering::Relaxed);
    }

    /// Whether its caller waits for it from the beginning.
    pub(super) fn is_awaited(&self) -> bool {
        self.is_awaited.load(Ordering::Relaxed)
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
        let outcome =
            self.is_done().then(|| self.outcome.ended())?.map(|ended| ended.without_delivery())?;
        if let Err(error) = &outcome {
            // Only now, for a message: its end is no place to wait for a disk.
            error_file::write_first_fatal_error(error, self.blamed_rank.get().copied());
        }
        Some(outcome)
    }

    /// The number of the operation: for collectives that in its group, for messages one of their
    /// own. `None` before it is issued.
    pub fn sequence(&self) -> Option<u64> {
        self.issue_info.get().map(|issue| issue.sequence)
    }

    /// When it was issued, in nanoseconds since 1970 on the recorder's clock. `None` before it is.
    pub fn started_ns(&self) -> Option<u64> {
        self.issue_info.get().map(|issue| recorder::recorder_unix_ns(issue.deadline.started()))
    }

    /// The rank that its error names, once it has failed.
    pub fn culprit(&self) -> Option<Culprit> {
        self.outcome.ended()?.result.as_ref().err()?.culprit_details()
    }

    /// Where in the program it was issued, where that was wanted.
    pub fn issue_backtrace(&self) -> Option<Arc<Backtrace>> {
        self.issue_backtrace.get().cloned()
    }

    /// The time from its issue until it ended, or until now.
    pub fn elapsed(&self) -> Duration {
        let Some(issue) = self.issue_info.get() else { return Duration::ZERO };
        let end = self.outcome.ended().map_or_else(Instant::now, |ended| ended.time);
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

    /// Peer, tag and length of the message; `None` until the work has succeeded.
    pub fn delivery(&self) -> Option<Delivery> {
        self.outcome.ended()?.result.as_ref().ok().copied().flatten()
    }

    /// Waits until it has ended or the limit has passed, and does meanwhile what can be done for it
    /// on this thread. Any thread, any number of times.
    ///
    /// # Errors
    /// The operation's own error, which stays; `InvalidArgument` for a work of a batch that has not
    /// ended, and for a pending one inside a completion callback.
    pub fn wait(&self, limit: &Deadline) -> Result<WorkProgress> {
        self.wait_for_outcome(limit).inspect_err(|_| recorder::dump_failures_and_wait())
    }

    fn wait_for_outcome(&self, limit: &Deadline) -> Result<WorkProgress> {
        if let Some(outcome) = self.outcome() {
            return outcome.map(|()| WorkProgress::Done);
        }
        if limit.has_passed() {
            return Ok(WorkProgress::Pending);
        }
        callbacks::reject_blocking_in_callback("waiting for a pending work")?;
        self.check_issued()?;
        let Some(issue) = self.issue_info.get() else {
            // It has ended without having been issued.
            return self
                .outcome()
                .map_or(Ok(WorkProgress::Pending), |it| it.map(|()| WorkProgress::Done));
        };
        match self.kind {
            WorkKind::Collective(_) => {
                let own_operation = Some((issue.sequence, issue.deadline));
                self.queue.wait_for(|| self.is_done(), limit, own_operation);
            }
            WorkKind::Message(_) => self.progress_message(limit),
            WorkKind::Batch => self.wait_for_members(limit),
        }
        self.outcome()
            .map_or(Ok(WorkProgress::Pending), |outcome| outcome.map(|()| WorkProgress::Done))
    }

    /// Waits until it has ended, and until the device is done with it where it was enqueued on one.
    /// Any thread, any number of times.
    ///
    /// # Errors
    /// As [`Work::wait`]; the failure of its group, if that came before the device was done.
    pub fn synchronize(&self, limit: &Deadline) -> Result<WorkProgress> {
        if self.wait(limit)? == WorkProgress::Pending {
            return Ok(WorkProgress::Pending);
        }
        let mut completions = lock(&self.member_completions).clone();
        completions.extend(self.device_completion.get().cloned());
        if !completions.is_empty() {
            callbacks::reject_blocking_in_callback("waiting for a device")?;
        }
        for flight in completions {
            if !flight.wait(limit).inspect_err(|_| recorder::dump_failures_and_wait())? {
                return Ok(WorkProgress::Pending);
            }
        }
        Ok(WorkProgress::Done)
    }

    /// Where its operation on a device is put.
    pub(super) fn device_completion(&self) -> &EnqueuedOperationSlot {
        &self.device_completion
    }

    /// Waits for the device also for a member of this batch.
    pub(super) fn add_member_completion(&self, member: &Self) {
        if let Some(flight) = member.device_completion.get() {
            lock(&self.member_completions).push(Arc::clone(flight));
        }
    }

    /// Lets the engine that carries the message make progress on this thread.
    fn progress_message(&self, limit: &Deadline) {
        let group = self.message_group();
        if let Some(engine) = group.as_ref().and_then(|group| group.backend.point_to_point()) {
            self.progress_until(engine, &|| self.is_done(), limit);
        } else {
            self.queue.wait_for(|| self.is_done(), limit, None);
        }
    }

    /// Lets an engine make progress on this thread until `is_over` holds; in the log, this message
    /// waits.
    pub(super) fn progress_until(
        &self,
        engine: &dyn PointToPoint,
        is_over: &dyn Fn() -> bool,
        limit: &Deadline,
    ) {
        let mut watch = SlowWaitWatch::default();
        while !is_over() && !limit.has_passed() {
            match watch.check(|lasted| self.log_long_wait(lasted)) {
                Some(most) => engine.progress_until(is_over, &limit.capped(most)),
                None => engine.progress_until(is_over, limit),
            }
        }
    }

    /// The members of a batch that is pending.
    pub(super) fn pending_members(&self) -> Vec<Arc<Self>> {
        lock(&self.members).clone()
    }

    /// The group of a message that is pending.
    pub(super) fn message_group(&self) -> Option<Arc<Group>> {
        lock(&self.pending_message).as_ref().map(|held| Arc::clone(&held.group))
    }

    /// The queue that it is issued in, and how.
    pub(super) fn queue_and_issue_info(&self) -> (&Arc<RunQueue>, Option<IssueInfo>) {
        (&self.queue, self.issue_info.get().copied())
    }

    /// A long wait for a message, for the log.
    #[cold]
    fn log_long_wait(&self, lasted: DisplaySeconds) {
        let (Some(group), WorkKind::Message(message)) = (self.message_group(), self.kind) else {
            return;
        };
        let last = message.peer.and_then(|peer| group.backend.last_activity(peer));
        let last = last.map(|last| format!("; that rank {last}")).unwrap_or_default();
        crate::log!(
            LogLevel::Warn,
            "{message} on {} has waited {lasted}{last}",
            group.describe_rank()
        );
        callbacks::release_group(group);
    }

    /// Waits for one after the other; the last one that ends ends the batch.
    fn wait_for_members(&self, limit: &Deadline) {
        let members = self.pending_members();
        // An error is the batch's own, or stands behind an earlier one.
        members.iter().for_each(|member| drop(member.wait(limit)));
        self.queue.wait_for(|| self.is_done(), limit, None);
    }

    /// Calls a function once the work has ended, on the callback thread, never inside this call. By
    /// its key it can be withdrawn.
    ///
    /// # Errors
    /// `OutOfMemory` where too many callbacks are registered, `System` where their thread cannot be
    /// started, `NotInitialized` where callbacks were stopped.
    pub fn on_complete(
        &self,
        key: CallbackKey,
        function: impl FnOnce(&Result<()>) + Send + 'static,
    ) -> Result<()> {
        let callback = callbacks::register(key, function)?;
        self.add_completion_action(CompletionAction::Callback(callback));
        Ok(())
    }

    /// Withdraws the first callback with this key that has not been called, which then never is;
    /// false where there is none.
    pub fn withdraw_callback(&self, key: CallbackKey) -> bool {
        self.outcome.withdraw_callback(key)
    }

    /// How many hooks there are.
    #[cfg(test)]
    #[cfg(not(loom))]
    pub(super) fn hook_count(&self) -> usize {
        self.outcome.hook_count()
    }

    /// Removes what [`Work::add_completion_action`] was given with this number, unless the work has
    /// ended.
    pub(super) fn remove_hook(&self, id: u64) {
        self.outcome.remove_hook(id);
    }

    pub(super) fn add_completion_action(&self, action: CompletionAction) {
        if let Some((then, ended)) = self.outcome.add_action(action) {
            then.run(&ended.without_delivery());
        }
    }
}

impl Completion for Work {
    fn is_awaited(&self) -> bool {
        Self::is_awaited(self)
    }

    fn complete(&self, outcome: Result<Delivery>) {
        self.end(outcome.map(Some).map_err(|error| self.with_message_context(error)));
    }
}

impl Work {
    /// An error of a message, with what the engine does not know of it.
    pub(super) fn with_message_context(&self, error: Error) -> Error {
        let group = lock(&self.pending_message).as_ref().map(|held| held.group.describe_rank());
        match (self.kind, group) {
            (WorkKind::Message(message), Some(group)) => {
                error.context(format_args!("{message} on {group}"))
            }
            _ => error,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
