//! A work represents an asynchronous operation. Callers wait for its end and read its outcome.
//!
//! * **States.** A work changes from pending to done exactly once, and then keeps its outcome.
//! * **Lifetime.** A pending operation keeps its group alive: the job of a collective in the
//!   group's queue holds a reference to the group, and so does the work of a message. A done work
//!   holds only the outcome, so a work may outlive its group.
//! * **Visibility.** The outcome is stored with release and read with acquire. Therefore a thread
//!   that sees that a work is done also sees the data that the operation has written. When a work
//!   is done, the library no longer accesses the caller's buffers.
//!
//! [`super::wait`] has the functions that wait for a work. This module does not depend on how a
//! collective runs or how a message travels.

use crate::api::group::process_group::Group;
use crate::api::observe::debug::in_flight_buffers::{self, InFlightWork};
use crate::api::observe::error_file;
use crate::api::observe::recorder::{self, OperationRecord};
use crate::api::p2p::message_descriptor::MessageDescriptor;
use crate::api::work::callbacks::{self, CallbackKey};
use crate::api::work::device_wait::DeviceWait;
use crate::api::work::events::{CompletionEvents, EventSlot};
use crate::api::work::queue::RunQueue;
use crate::api::work::work_outcome::{CompletionAction, WorkEnd, WorkOutcome};
use crate::base::backtrace;
use crate::base::deadline::Deadline;
use crate::base::error::{Culprit, Error, ErrorKind, Result};
use crate::base::gpu::EnqueuedOperationSlot;
use crate::base::ids::Rank;
use crate::base::sync::{AtomicBool, Mutex, Ordering, fence, unpoisoned};
use crate::transport::{Completion, Delivery, OpKind};
use std::backtrace::Backtrace;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The kind of operation of a work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkKind {
    /// A collective operation.
    Collective(OpKind),
    /// A message to or from another rank.
    Message(MessageDescriptor),
    /// Several operations that were issued together.
    Batch,
}

/// The properties of a work that are fixed when the operation is issued.
#[derive(Clone, Copy, Debug)]
pub(super) struct IssueInfo {
    pub(super) sequence: u64,
    /// The deadline. Its time limit starts when the operation is issued.
    pub(super) deadline: Deadline,
}

/// The objects that the work of a message holds while the message is pending.
#[derive(Debug)]
pub(in crate::api) struct PendingMessage {
    pub(in crate::api) group: Arc<Group>,
    pub(in crate::api) record: OperationRecord,
}

/// An asynchronous operation that was issued or will be issued.
#[derive(Debug)]
pub struct Work {
    pub(super) kind: WorkKind,
    /// True if the caller waits for the work immediately after its issue.
    is_awaited: AtomicBool,
    /// The queue on which callers wait for the work. For a collective or a message, this is the
    /// group's queue. A batch has a queue of its own, which never has jobs.
    pub(super) queue: Arc<RunQueue>,
    pub(super) issue_info: OnceLock<IssueInfo>,
    /// The stack of the issuing call, if backtraces are on.
    issue_backtrace: OnceLock<Arc<Backtrace>>,
    outcome: WorkOutcome,
    /// For a message: its group and its entry in the flight recorder, from its issue until it is
    /// done.
    pending_message: Mutex<Option<PendingMessage>>,
    /// The culprit of a message's error, as a rank of the outermost group.
    blamed_rank: OnceLock<Rank>,
    /// The caller's handle, and the work's place in the list of completion events.
    event_slot: EventSlot,
    /// For a batch whose calls all belong to one group: the queue of this group.
    single_group_queue: OnceLock<Arc<RunQueue>>,
    /// For a batch: the works of its calls (members), from the issue until the batch is done.
    members: Mutex<Vec<Arc<Self>>>,
    /// The completion of the operation on its device, if the operation was enqueued on a device.
    device_completion: EnqueuedOperationSlot,
    /// For a message that is enqueued on a device: its position among the messages to or from the
    /// same rank, or 0 if this is unknown.
    pub(super) enqueued_position: OnceLock<u64>,
    /// For a batch: the waits for the devices of its members.
    member_waits: Mutex<Vec<DeviceWait>>,
}

impl Work {
    /// Creates a work that has not been issued.
    pub(in crate::api) fn new(kind: WorkKind, queue: Arc<RunQueue>) -> Arc<Self> {
        Arc::new(Self {
            kind,
            is_awaited: AtomicBool::new(false),
            queue,
            issue_info: OnceLock::new(),
            issue_backtrace: OnceLock::new(),
            outcome: WorkOutcome::new(),
            pending_message: Mutex::new(None),
            blamed_rank: OnceLock::new(),
            event_slot: EventSlot::default(),
            single_group_queue: OnceLock::new(),
            members: Mutex::default(),
            device_completion: EnqueuedOperationSlot::new(),
            enqueued_position: OnceLock::new(),
            member_waits: Mutex::default(),
        })
    }

    /// Marks the work as issued. Called once.
    pub(in crate::api) fn mark_issued(&self, sequence: u64, deadline: Deadline) {
        let newly_set = self.issue_info.set(IssueInfo { sequence, deadline });
        debug_assert!(newly_set.is_ok(), "a work was issued twice");
        if let Some(backtrace) = backtrace::capture() {
            drop(self.issue_backtrace.set(Arc::new(backtrace)));
        }
    }

    /// Stores the position of a message that is enqueued on a device. Called once, before the work
    /// is issued.
    pub(in crate::api) fn mark_enqueued_message(&self, position: u64) {
        let _first = self.enqueued_position.set(position);
    }

    /// Stores the objects that a message needs until it is done.
    pub(in crate::api) fn keep_until_done(&self, held: PendingMessage) {
        *unpoisoned(self.pending_message.lock()) = Some(held);
    }

    /// Marks the work of a batch as issued. `members` are the works of the batch's calls.
    pub(in crate::api) fn mark_issued_as_batch(&self, members: Vec<Arc<Self>>) {
        *unpoisoned(self.members.lock()) = members;
        self.queue.add_work();
        self.mark_issued(1, Deadline::never());
    }

    /// Ends the work and runs its completion actions. If the work has already ended, its outcome
    /// stays.
    pub(in crate::api) fn end(&self, result: Result<Option<Delivery>>) {
        unpoisoned(self.members.lock()).clear();
        // The buffers are unregistered and the group is released before the outcome is stored. A
        // caller that sees the outcome may use the buffers, and may rely on it that this work no
        // longer holds the group.
        in_flight_buffers::unregister_work(self);
        let pending_message = unpoisoned(self.pending_message.lock()).take();
        let mut result = result;
        if let Some(PendingMessage { group, record }) = pending_message {
            result = result.map_err(|error| group.with_culprit_process(error));
            record.end(&result.as_ref().map(drop).map_err(Clone::clone));
            if let Some(rank) =
                result.as_ref().err().and_then(|error| group.blamed_global_rank(error))
            {
                // The work of a message ends only once, so the cell is still empty.
                let _first = self.blamed_rank.set(rank);
            }
            Group::release(group);
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
            // Pairs with the fence in `Group::completion_descriptor` (see `events`). In the branch
            // above, the doorbell in `end_work` has this fence.
            fence(Ordering::SeqCst);
        }
        if let Some(events) = self.events() {
            events.add(&self.event_slot);
        }
    }

    /// Returns the queue of the group whose completion events include this work. Returns `None` for
    /// a batch with calls of several groups.
    fn event_queue(&self) -> Option<&Arc<RunQueue>> {
        match self.kind {
            WorkKind::Batch => self.single_group_queue.get(),
            WorkKind::Collective(_) | WorkKind::Message(_) => Some(&self.queue),
        }
    }

    /// Records that the program gets the failure of the group, because the device reported it. A
    /// failure before the device operation was recorded with the outcome of the work.
    pub(super) fn mark_failure_as_known(&self) {
        let history = self.event_queue().and_then(|queue| queue.history.get());
        history.into_iter().for_each(|history| history.mark_failure_as_known());
    }

    fn events(&self) -> Option<&Arc<CompletionEvents>> {
        self.event_queue().and_then(|queue| queue.events())
    }

    /// Adds the work to the completion events of the group with this queue, if the work is done and
    /// belongs to this group.
    fn report_if_done(&self, queue: &Arc<RunQueue>) {
        let is_of_group = self.event_queue().is_some_and(|own| Arc::ptr_eq(own, queue));
        if is_of_group && self.is_done() {
            queue.events().into_iter().for_each(|events| events.add(&self.event_slot));
        }
    }

    /// Stores that all calls of this batch belong to the group with this queue. Called before the
    /// batch is issued.
    pub(in crate::api) fn set_single_group_queue(&self, queue: Arc<RunQueue>) {
        drop(self.single_group_queue.set(queue));
    }

    /// Stores the caller's handle, which must not be 0. Called before the work is issued.
    pub fn set_handle(&self, token: usize) {
        self.event_slot.handle.store(token, Ordering::Release);
    }

    /// Removes the caller's handle from the work and from the completion events. Called when the
    /// caller releases the handle.
    pub fn clear_handle(&self) {
        self.event_slot.handle.store(0, Ordering::Release);
        if let Some(events) = self.events() {
            events.remove(&self.event_slot);
        }
    }

    /// Stores that the caller will wait for the work immediately after its issue. Called before the
    /// work is issued.
    pub fn set_awaited(&self) {
        self.is_awaited.store(true, Ordering::Relaxed);
    }

    /// Returns whether the caller waits for the work immediately after its issue.
    pub(in crate::api) fn is_awaited(&self) -> bool {
        self.is_awaited.load(Ordering::Relaxed)
    }

    /// Returns a number that identifies the work while it exists.
    pub(in crate::api) fn id(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Returns the kind of operation.
    pub fn kind(&self) -> WorkKind {
        self.kind
    }

    /// Returns true once the work has ended.
    pub fn is_done(&self) -> bool {
        self.outcome.is_done()
    }

    /// Returns the outcome, or `None` while the work is pending.
    pub fn outcome(&self) -> Option<Result<()>> {
        let outcome =
            self.is_done().then(|| self.outcome.ended())?.map(|ended| ended.without_delivery())?;
        if let Err(error) = &outcome {
            // For a message, the error file is written here and not at the end of the work, because
            // the thread that ends a message must not wait for a disk.
            error_file::write_first_fatal_error(error, self.blamed_rank.get().copied());
        }
        Some(outcome)
    }

    /// Returns the sequence number of a collective in its group, or the number of a message among
    /// messages. `None` before the work is issued.
    pub fn sequence(&self) -> Option<u64> {
        self.issue_info.get().map(|issue| issue.sequence)
    }

    /// Returns the time of issue in nanoseconds since 1970, on the flight recorder's clock. `None`
    /// before the work is issued.
    pub fn started_ns(&self) -> Option<u64> {
        self.issue_info.get().map(|issue| recorder::recorder_unix_ns(issue.deadline.started()))
    }

    /// Returns the rank that the work's error names as its cause. `None` if the work has not failed
    /// or its error names no rank.
    pub fn culprit(&self) -> Option<Culprit> {
        self.outcome.ended()?.result.as_ref().err()?.culprit_details()
    }

    /// Returns the stack of the issuing call, if backtraces are on.
    pub fn issue_backtrace(&self) -> Option<Arc<Backtrace>> {
        self.issue_backtrace.get().cloned()
    }

    /// Returns the time from the issue until the end of the work, or until now if the work is
    /// pending.
    pub fn elapsed(&self) -> Duration {
        let Some(issue) = self.issue_info.get() else { return Duration::ZERO };
        let end = self.outcome.ended().map_or_else(Instant::now, |ended| ended.time);
        end.saturating_duration_since(issue.deadline.started())
    }

    /// Returns the peer of a message that has succeeded: the source of a receive, or the
    /// destination of a send.
    pub fn source(&self) -> Option<Rank> {
        self.delivery().map(|delivery| delivery.peer)
    }

    /// Returns the tag of a message that has succeeded.
    pub fn tag(&self) -> Option<u32> {
        self.delivery().map(|delivery| delivery.tag)
    }

    /// Returns the number of received elements of a receive that has succeeded.
    pub fn received_count(&self) -> Option<usize> {
        let WorkKind::Message(message) = self.kind else { return None };
        let delivery = self.delivery().filter(|_| !message.is_outgoing)?;
        Some(delivery.bytes / message.dtype.size())
    }

    /// Returns the peer, the tag and the length of a message. `None` unless the work has succeeded.
    pub fn delivery(&self) -> Option<Delivery> {
        self.outcome.ended()?.result.as_ref().ok().copied().flatten()
    }

    /// Returns the slot for the operation's completion on a device.
    pub(in crate::api) fn device_completion(&self) -> &EnqueuedOperationSlot {
        &self.device_completion
    }

    /// Returns the waits for devices: of the operation itself, or of the members of a batch.
    pub(super) fn device_waits(&self) -> Vec<DeviceWait> {
        let mut waits = unpoisoned(self.member_waits.lock()).clone();
        waits.extend(self.device_wait());
        waits
    }

    /// Adds the wait for the device of a member to this batch, so that [`Work::synchronize`] on the
    /// batch waits for it.
    pub(in crate::api) fn add_member_completion(&self, member: &Self) {
        unpoisoned(self.member_waits.lock()).extend(member.device_wait());
    }

    /// Returns the members of a batch that is pending; otherwise an empty list.
    pub(super) fn pending_members(&self) -> Vec<Arc<Self>> {
        unpoisoned(self.members.lock()).clone()
    }

    /// Returns the group of a message that is pending.
    pub(super) fn message_group(&self) -> Option<Arc<Group>> {
        unpoisoned(self.pending_message.lock()).as_ref().map(|held| Arc::clone(&held.group))
    }

    /// Registers a function that the callback thread calls when the work has ended. If the work has
    /// already ended, the callback thread calls the function soon; this method never calls it
    /// itself. The key identifies the function for [`Work::withdraw_callback`].
    ///
    /// # Errors
    /// `OutOfMemory` if too many callbacks are registered; `System` if the callback thread cannot
    /// be started; `NotInitialized` if callbacks were stopped.
    pub fn on_complete(
        &self,
        key: CallbackKey,
        function: impl FnOnce(&Result<()>) + Send + 'static,
    ) -> Result<()> {
        let callback = callbacks::register(key, function)?;
        self.add_completion_action(CompletionAction::Callback(callback));
        Ok(())
    }

    /// Withdraws the first callback with this key that has not been called. The callback is then
    /// never called. Returns false if there is no such callback.
    pub fn withdraw_callback(&self, key: CallbackKey) -> bool {
        self.outcome.withdraw_callback(key)
    }

    /// Returns the number of registered hooks.
    #[cfg(test)]
    #[cfg(not(loom))]
    pub(in crate::api) fn hook_count(&self) -> usize {
        self.outcome.hook_count()
    }

    /// Removes the hook with this number, unless the work has ended.
    pub(super) fn remove_hook(&self, id: u64) {
        self.outcome.remove_hook(id);
    }

    /// Registers an action for the end of the work. Runs the action immediately if the work has
    /// already ended.
    pub(in crate::api) fn add_completion_action(&self, action: CompletionAction) {
        if let Some((action, ended)) = self.outcome.add_action(action) {
            action.run(&ended.without_delivery());
        }
    }
}

impl InFlightWork for Work {
    fn operation(&self) -> Option<(String, bool)> {
        match self.kind {
            WorkKind::Collective(kind) => Some((kind.name().to_owned(), true)),
            WorkKind::Message(message) => Some((message.to_string(), false)),
            WorkKind::Batch => None,
        }
    }

    fn sequence(&self) -> Option<u64> {
        Self::sequence(self)
    }
}

impl Completion for Work {
    fn is_awaited(&self) -> bool {
        Self::is_awaited(self)
    }

    fn work_id(&self) -> usize {
        Self::id(self)
    }

    fn complete(&self, outcome: Result<Delivery>) {
        self.end(outcome.map(Some).map_err(|error| self.with_message_context(error)));
    }
}

impl Work {
    /// Adds the message and its group to an error from the engine. The engine does not know their
    /// names.
    pub(in crate::api) fn with_message_context(&self, error: Error) -> Error {
        let group =
            unpoisoned(self.pending_message.lock()).as_ref().map(|held| held.group.describe_rank());
        match (self.kind, group) {
            (WorkKind::Message(message), Some(group)) => {
                error.context(format_args!("{message} on {group}"))
            }
            _ => error,
        }
    }
}

impl Group {
    /// Returns the file descriptor that is readable while the group has completed works that the
    /// caller has not taken. `handled_works` returns all works that have handles. It is called only
    /// if the group has no list of completion events yet.
    ///
    /// # Errors
    /// `System` if the process has no free descriptor; `NotInitialized` if the group is being
    /// released.
    pub fn completion_descriptor(
        &self,
        handled_works: impl FnOnce() -> Vec<Arc<Work>>,
    ) -> Result<i32> {
        if self.queue.events().is_none() {
            self.queue.set_events(Arc::new(CompletionEvents::new()?));
            fence(Ordering::SeqCst);
            for work in handled_works() {
                work.report_if_done(&self.queue);
            }
        }
        let descriptor = self.queue.events().and_then(|events| events.descriptor());
        descriptor.ok_or_else(|| {
            let message =
                format!("group {} is being released and has no completion events", self.name());
            Error::new(ErrorKind::NotInitialized, message)
        })
    }

    /// Takes up to `max_works` completed works from the completion events, in the order of their
    /// completion, and returns their handles. Returns an empty list if the descriptor was never
    /// requested.
    pub fn take_done(&self, max_works: usize) -> Vec<usize> {
        self.queue.events().map_or_else(Vec::new, |events| events.take_oldest(max_works))
    }

    /// Closes the descriptor of the completion events. Works that complete after this call are not
    /// listed.
    pub fn close_events(&self) {
        self.queue.events().into_iter().for_each(|events| events.close());
    }
}
