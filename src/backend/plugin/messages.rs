//! Point-to-point messages over a plug-in. The plug-in reports the completion of a message only
//! when the library polls the message.
//!
//! A thread that waits for a message polls all outstanding messages of the group. Only one thread
//! polls at a time. The worker thread of the group also polls, so that messages complete if no
//! thread waits; it exists while messages are outstanding. If the deadline of a message passes, the
//! request of the message is released.
//!
//! This module does not depend on how messages are matched.

use super::device_current::BoundCommunicator;
use super::failure_state::PluginFailureState;
use super::task::{
    GrowableBuffer, PluginMessageStatus, PluginRequest, PluginTask, SubmitOutcome, TaskKind,
};
use crate::backend::message_counter::{MessageCounter, MessageDirection};
use crate::backend::{
    Completion, Delivery, GroupFailureState as _, LARGEST_TAG, MessageTraffic, PointToPoint,
    ProbeRequest, ProbedMessage, ReceiveBuffer, ReceiveRequest, SendRequest,
};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::gpu::GpuTarget;
use crate::base::ids::Rank;
use crate::base::log::LogLevel;
use crate::base::sync::lock;
use crate::process::thread;
use crate::wait::{WaitPolicy, wait_until};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{ThreadId, current};
use std::time::Duration;

/// The maximum number of outstanding messages.
const MAX_OUTSTANDING: usize = 65_536;

/// The time for which a waiter polls without a pause. After that, it sleeps between two polls.
const SPIN_TIME: Duration = Duration::from_millis(1);

/// The duration of the first sleep between two polls. Each sleep is twice as long as the sleep
/// before.
const MIN_SLEEP: Duration = Duration::from_micros(50);
/// The maximum duration of a sleep between two polls.
const MAX_SLEEP: Duration = Duration::from_millis(2);

/// The number of polls after which the library asks the plug-in whether it has failed. This query
/// may take longer than a poll.
const POLLS_PER_FAILURE_CHECK: u32 = 16;

/// The maximum time for which the end of a group waits until its worker thread returns from the
/// plug-in.
const CLOSE_WAIT: Duration = Duration::from_secs(1);

/// The messages of one group.
#[derive(Debug)]
pub(super) struct PluginMessages(Arc<PluginMessagesShared>);

#[derive(Debug)]
struct PluginMessagesShared {
    name: &'static str,
    size: usize,
    communicator: BoundCommunicator,
    failure_state: Arc<PluginFailureState>,
    poll_count: AtomicU32,
    counter: MessageCounter,
    list: Mutex<OutstandingList>,
}

#[derive(Debug, Default)]
struct OutstandingList {
    outstanding: Vec<OutstandingMessage>,
    /// True while a thread has taken the outstanding messages out of the list and polls them.
    is_polled: bool,
    has_worker: bool,
    worker: Option<ThreadId>,
    is_closed: bool,
}

/// A message that is not complete.
#[derive(Debug)]
struct OutstandingMessage {
    request: PluginRequest,
    kind: TaskKind,
    peer: Option<Rank>,
    tag: Option<u32>,
    max_bytes: usize,
    growable_buffer: Option<Arc<GrowableBuffer>>,
    deadline: Deadline,
    /// The number in the [`MessageCounter`].
    number: u64,
    done: Arc<dyn Completion>,
}

impl PluginMessages {
    pub(super) fn new(
        name: &'static str,
        size: usize,
        communicator: BoundCommunicator,
        state: Arc<PluginFailureState>,
    ) -> Self {
        Self(Arc::new(PluginMessagesShared {
            name,
            size,
            communicator,
            failure_state: state,
            poll_count: AtomicU32::new(1),
            counter: MessageCounter::default(),
            list: Mutex::default(),
        }))
    }
}

impl Drop for PluginMessages {
    fn drop(&mut self) {
        let is_worker = {
            let mut list = self.0.lock_list();
            list.is_closed = true;
            list.worker == Some(current().id())
        };
        self.0.failure_state.doorbell().notify();
        if is_worker {
            // The worker thread itself drops the group, because the completion of a message dropped
            // it. The worker completes the other messages later, and then ends.
            return;
        }
        let limit = Deadline::after(CLOSE_WAIT);
        // The loop also waits until the worker has dropped its reference, so that the plug-in's
        // communicator is dropped on this thread and not later.
        while Arc::strong_count(&self.0) > 1 || !self.0.lock_list().outstanding.is_empty() {
            self.0.poll();
            self.0.failure_state.doorbell().sleep_unless_ready(MIN_SLEEP, || true, || None::<()>);
            if limit.has_passed() {
                crate::log!(
                    LogLevel::Error,
                    "the back end {} does not return from polling a message",
                    self.0.name
                );
                return;
            }
        }
    }
}

impl PointToPoint for PluginMessages {
    fn send(&self, message: SendRequest, done: Arc<dyn Completion>) -> Result<()> {
        self.send_from_gpu(None, message, done)
    }

    fn receive(&self, message: ReceiveRequest, done: Arc<dyn Completion>) -> Result<()> {
        self.receive_to_gpu(None, message, done)
    }

    fn send_from_gpu(
        &self,
        gpu: Option<GpuTarget>,
        message: SendRequest,
        done: Arc<dyn Completion>,
    ) -> Result<()> {
        if message.is_synchronous {
            let message = format!(
                "the back end {} has no synchronous send: omit DIST_CALL_SYNCHRONOUS, and let the \
                 receiver send a reply",
                self.0.name
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        self.0.post(&PluginTask::from_send(&message, gpu), None, message.bytes.len(), done)
    }

    fn receive_to_gpu(
        &self,
        gpu: Option<GpuTarget>,
        message: ReceiveRequest,
        done: Arc<dyn Completion>,
    ) -> Result<()> {
        let growable_buffer = match message.buffer {
            ReceiveBuffer::Borrowed(_) => None,
            ReceiveBuffer::Allocated { max_bytes } => {
                Some(Arc::new(GrowableBuffer::new(max_bytes)))
            }
        };
        let task = PluginTask::from_receive(&message, growable_buffer.as_deref(), gpu);
        self.0.post(&task, growable_buffer.clone(), message.buffer.max_bytes(), done)
    }

    fn probe(&self, _: &ProbeRequest, _: &Deadline) -> Result<Option<ProbedMessage>> {
        let message = format!(
            "the back end {} cannot probe for messages: use dist_recv with a buffer for the \
             longest message, or dist_recv_bytes",
            self.0.name
        );
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    fn progress_until(&self, over: &dyn Fn() -> bool, limit: &Deadline) {
        let doorbell = self.0.failure_state.doorbell();
        let look = || {
            self.0.poll();
            over().then_some(())
        };
        if wait_until(doorbell, WaitPolicy::SLEEP_SOON, &limit.capped(SPIN_TIME), || None, look)
            .is_ok()
        {
            return;
        }
        let mut sleep_time = MIN_SLEEP;
        while !limit.has_passed() {
            self.0.poll();
            if doorbell
                .sleep_unless_ready(
                    sleep_time.min(limit.remaining()),
                    || true,
                    || over().then_some(()),
                )
                .is_some()
            {
                return;
            }
            sleep_time = (sleep_time * 2).min(MAX_SLEEP);
        }
    }

    fn traffic(&self, work_id: usize) -> MessageTraffic {
        self.0.counter.traffic(work_id)
    }

    /// Returns `None`, because a plug-in does not report that a rank has left.
    fn departure_error(&self, _: Rank) -> Option<Error> {
        None
    }
}

impl PluginMessagesShared {
    fn lock_list(&self) -> MutexGuard<'_, OutstandingList> {
        lock(&self.list)
    }

    fn post(
        self: &Arc<Self>,
        task: &PluginTask<'_>,
        growable_buffer: Option<Arc<GrowableBuffer>>,
        max_bytes: usize,
        done: Arc<dyn Completion>,
    ) -> Result<()> {
        if let Some(failure) = self.failure_state.known_failure() {
            return Err(failure.clone());
        }
        if self.lock_list().outstanding.len() >= MAX_OUTSTANDING {
            let message =
                format!("{MAX_OUTSTANDING} messages are outstanding, which is the maximum");
            return Err(Error::new(ErrorKind::OutOfMemory, message));
        }
        self.ensure_worker()?;
        let direction = match task.kind {
            TaskKind::Receive => MessageDirection::Receive,
            TaskKind::Send | TaskKind::Collective(_) => MessageDirection::Send,
        };
        let number = self.counter.begin(direction, (task.peer, task.tag), done.work_id());
        let submitted = self.communicator.submit(task);
        self.counter.end_submission();
        let submitted = submitted.inspect_err(|error| {
            self.counter.end(number, &Err(error.clone()));
        })?;
        let outstanding = OutstandingMessage {
            request: match submitted {
                SubmitOutcome::Pending(request) => request,
                SubmitOutcome::Done(_) => PluginRequest { handle: 0, ticket: 0 },
            },
            kind: task.kind,
            peer: task.peer,
            tag: task.tag,
            max_bytes,
            growable_buffer,
            deadline: *task.deadline,
            number,
            done,
        };
        match submitted {
            SubmitOutcome::Done(received) => {
                self.complete(&outstanding, self.to_delivery(&outstanding, received));
            }
            SubmitOutcome::Pending(_) => {
                self.lock_list().outstanding.push(outstanding);
                // Between the first check and the push, the worker may have found no message and
                // ended, so this is checked again.
                if let Err(error) = self.ensure_worker() {
                    crate::log!(
                        LogLevel::Error,
                        "messages make progress only while a caller waits: {error}"
                    );
                }
            }
        }
        self.failure_state.doorbell().notify();
        Ok(())
    }

    /// Starts the worker thread if it is not running.
    fn ensure_worker(self: &Arc<Self>) -> Result<()> {
        let mut list = self.lock_list();
        if !list.has_worker {
            let shared = Arc::clone(self);
            thread::start("dist-messages", move || shared.run_worker())?;
            list.has_worker = true;
        }
        Ok(())
    }

    /// The main function of the worker thread.
    fn run_worker(&self) {
        let (doorbell, mut sleep_time) = (self.failure_state.doorbell(), MIN_SLEEP);
        self.lock_list().worker = Some(current().id());
        loop {
            let has_progressed = self.poll();
            {
                let mut list = self.lock_list();
                let is_idle = list.outstanding.is_empty() && !list.is_polled;
                if is_idle && (list.is_closed || sleep_time == MAX_SLEEP) {
                    list.has_worker = false;
                    list.worker = None;
                    break;
                }
            }
            sleep_time = if has_progressed { MIN_SLEEP } else { (sleep_time * 2).min(MAX_SLEEP) };
            doorbell.sleep_unless_ready(sleep_time, || true, || None::<()>);
        }
        doorbell.notify();
    }

    /// Polls each message once. Does nothing if another thread is polling. Returns true if a
    /// message has completed.
    fn poll(&self) -> bool {
        let messages = {
            let mut list = self.lock_list();
            if list.is_polled || list.outstanding.is_empty() {
                return false;
            }
            list.is_polled = true;
            std::mem::take(&mut list.outstanding)
        };
        let checks_failure =
            self.poll_count.fetch_add(1, Ordering::Relaxed).is_multiple_of(POLLS_PER_FAILURE_CHECK);
        let failure = if checks_failure {
            self.failure_state.query_failure()
        } else {
            self.failure_state.known_failure().cloned()
        };
        let count = messages.len();
        let closed = self.lock_list().is_closed;
        let failure = failure.or_else(|| closed.then(|| self.closed_error()));
        let (mut remaining, mut ended) = (Vec::with_capacity(count), Vec::new());
        for outstanding in messages {
            match self.poll_message(&outstanding, failure.as_ref()) {
                Some(outcome) => ended.push((outstanding, outcome)),
                None => remaining.push(outstanding),
            }
        }
        let mut list = self.lock_list();
        // The messages stay in the order of posting.
        remaining.append(&mut list.outstanding);
        list.outstanding = remaining;
        list.is_polled = false;
        drop(list);
        let has_progressed = !ended.is_empty();
        // The completions are called last, because a completion may drop the group.
        ended.into_iter().for_each(|(outstanding, outcome)| self.complete(&outstanding, outcome));
        if has_progressed {
            self.failure_state.doorbell().notify();
        }
        has_progressed
    }

    fn complete(&self, outstanding: &OutstandingMessage, outcome: Result<Delivery>) {
        self.counter.end(outstanding.number, &outcome);
        outstanding.call_completion(outcome);
    }

    fn closed_error(&self) -> Error {
        Error::new(ErrorKind::Aborted, format!("this rank has left the group ({})", self.name))
    }

    /// Polls a message. Returns its outcome, or `None` if it is not complete.
    fn poll_message(
        &self,
        outstanding: &OutstandingMessage,
        failure: Option<&Error>,
    ) -> Option<Result<Delivery>> {
        if let Some(failure) = failure {
            return Some(Err(self.release_request(outstanding, failure.clone())));
        }
        match self.communicator.test(outstanding.request) {
            Ok(Some(received)) => Some(self.to_delivery(outstanding, received)),
            Err(error) => Some(Err(error)),
            Ok(None) if outstanding.deadline.has_passed() => {
                let waited = outstanding.deadline.elapsed().as_millis();
                let message = format!("not matched within {waited} ms");
                Some(
                    Err(self.release_request(outstanding, Error::new(ErrorKind::Timeout, message))),
                )
            }
            Ok(None) => None,
        }
    }

    /// Releases the request of a message that will not complete by itself. If the plug-in may still
    /// use the buffer of the message, the group fails.
    fn release_request(&self, outstanding: &OutstandingMessage, error: Error) -> Error {
        match self.communicator.release(outstanding.request) {
            Ok(awaited) => awaited.annotate(error),
            Err(release_error) => {
                let message = format!(
                    "{error}; the back end {} may still use its buffer: {release_error}",
                    self.name
                );
                let error = Error::new(error.kind(), message);
                self.failure_state.fail(&error);
                error
            }
        }
    }

    /// Validates the status that the plug-in has returned for a message, and converts it.
    fn to_delivery(
        &self,
        outstanding: &OutstandingMessage,
        received: PluginMessageStatus,
    ) -> Result<Delivery> {
        let protocol_error = |what: &str| {
            let message =
                format!("the back end {} returned an invalid message status: {what}", self.name);
            Error::new(ErrorKind::Backend, message)
        };
        let peer = outstanding
            .peer
            .or(received.peer)
            .ok_or_else(|| protocol_error("the sender is missing"))?;
        let tag =
            outstanding.tag.or(received.tag).ok_or_else(|| protocol_error("the tag is missing"))?;
        let bytes = match (outstanding.kind, received.bytes) {
            (TaskKind::Receive, Some(bytes)) => usize::try_from(bytes).unwrap_or(usize::MAX),
            (TaskKind::Receive, None) => return Err(protocol_error("the length is missing")),
            _ => outstanding.max_bytes,
        };
        if peer >= self.size || received.peer.is_some_and(|it| it != peer) {
            return Err(protocol_error(&format!(
                "rank {} cannot be the sender",
                received.peer.unwrap_or(peer)
            )));
        }
        if outstanding.tag.is_none() && tag > LARGEST_TAG {
            return Err(protocol_error(&format!("the tag {tag} is out of range")));
        }
        if bytes > outstanding.max_bytes {
            return Err(protocol_error(&format!(
                "{bytes} bytes exceed the buffer of {} bytes",
                outstanding.max_bytes
            )));
        }
        Ok(Delivery { peer, tag, bytes })
    }
}

impl OutstandingMessage {
    fn call_completion(&self, outcome: Result<Delivery>) {
        match (outcome, &self.growable_buffer) {
            (Ok(delivery), Some(buffer)) => {
                let bytes = buffer.take();
                let delivery = Delivery { bytes: bytes.len(), ..delivery };
                self.done.complete_allocated(delivery, bytes);
            }
            (outcome, _) => self.done.complete(outcome),
        }
    }
}
