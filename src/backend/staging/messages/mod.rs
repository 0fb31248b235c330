//! Point-to-point messages in device memory. A worker thread of the group transfers them piece by
//! piece through its own staging buffers.
//!
//! 1. The sender sends an RTS ([`control`]). If the receiver has a matching receive ([`matching`])
//!    and a free half of its staging buffer, it posts a receive for one piece and sends a CTS.
//! 2. For each CTS the sender lets the device copy one piece to a half of its own buffer. Then it
//!    sends the piece as a message in host memory, under a tag of this staged message.
//! 3. The receiver copies the arrived piece to the device. A message is complete for the sender
//!    when its last piece was sent, and for the receiver when the device has all pieces.
//!
//! A sender uses a half only for a piece whose receive is posted. So halves become free again in
//! any order of the ranks' calls. Before its first CTS, a message may time out without an effect on
//! other messages or ranks. After the first CTS, any error fails the group.
//!
//! Staged messages never match messages in host memory, because their tags differ.

mod control;
mod matching;
mod receiving;
mod sending;
mod shutdown;
mod worker;

use super::buffers::StagingBuffers;
use crate::backend::buffer_pool::PooledBuffer;
use crate::backend::{
    Backend, Completion, Delivery, DevicePointToPoint, DoorbellListener, GroupFailureState,
    ReceiveBuffer, ReceiveRequest, SendRequest,
};
use crate::base::buffer::Dst;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{Rank, WorldSize};
use crate::base::log::LogLevel;
use crate::base::sync::lock;
use crate::device::stream::DEFAULT_STREAM;
use crate::device::{CudaContext, CudaEvent};
use crate::process::thread;
use crate::wait::doorbell::Doorbell;
use crate::wait::{WaitPolicy, wait_until};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use worker::StagingWorker;

/// The time that a closing group waits for its worker thread.
const CLOSE_WAIT: Duration = Duration::from_secs(10);

/// An event for the worker thread.
#[derive(Debug)]
enum WorkerEvent {
    Send(SendRequest, PostedCompletion),
    Receive(ReceiveRequest, Dst<'static>, PostedCompletion),
    /// A control message arrived, or no further one can arrive.
    Control(Result<(Rank, Vec<u8>)>),
    /// The piece in a half was sent or received.
    PieceSent(usize, Result<Delivery>),
    PieceReceived(usize, Result<Delivery>),
}

/// The completion of a posted message.
#[derive(Debug)]
struct PostedCompletion {
    /// The event in the caller's stream after which the buffer is ready.
    ready_event: CudaEvent,
    /// The completion to call; `None` after the call.
    completion: Option<Arc<dyn Completion>>,
}

impl PostedCompletion {
    fn complete(mut self, outcome: Result<Delivery>) {
        self.completion.take().into_iter().for_each(|done| done.complete(outcome.clone()));
    }
}

impl Drop for PostedCompletion {
    /// Completes a lost message with an error, because a caller waits for it.
    fn drop(&mut self) {
        if let Some(done) = self.completion.take() {
            done.complete(Err(Error::internal(
                "a message in device memory was dropped without a completion",
            )));
        }
    }
}

/// The inbox of the worker thread. It has no reference to the matching engine, which holds
/// references to it.
#[derive(Debug, Default)]
struct WorkerInbox {
    events: Mutex<Vec<WorkerEvent>>,
    doorbell: Doorbell,
    is_closing: AtomicBool,
    has_ended: AtomicBool,
}

/// The staged messages of a group on its device.
#[derive(Debug)]
pub(super) struct StagingMessages {
    context: Arc<CudaContext>,
    chunk: usize,
    size: WorldSize,
    cpu: Arc<dyn Backend>,
    failure_state: Arc<dyn GroupFailureState>,
    inbox: Arc<WorkerInbox>,
    /// True if the worker thread was started.
    is_started: Mutex<bool>,
}

impl WorkerInbox {
    fn push(&self, event: WorkerEvent) {
        self.lock_events().push(event);
        self.doorbell.notify();
    }

    fn lock_events(&self) -> MutexGuard<'_, Vec<WorkerEvent>> {
        lock(&self.events)
    }
}

impl DoorbellListener for WorkerInbox {
    fn on_doorbell(&self) {
        self.doorbell.notify();
    }
}

impl StagingMessages {
    pub(super) fn new(
        context: &Arc<CudaContext>,
        chunk: usize,
        size: WorldSize,
        (cpu, failure_state): (&Arc<dyn Backend>, &Arc<dyn GroupFailureState>),
    ) -> Self {
        Self {
            context: Arc::clone(context),
            chunk,
            size,
            cpu: Arc::clone(cpu),
            failure_state: Arc::clone(failure_state),
            inbox: Arc::default(),
            is_started: Mutex::new(false),
        }
    }

    /// Prepares a message: checks the peer, records the event after which the buffer is ready, and
    /// starts the worker thread.
    fn prepare_post(
        &self,
        peer: Option<Rank>,
        stream: Option<usize>,
        done: Arc<dyn Completion>,
    ) -> Result<PostedCompletion> {
        if let Some(failure) = self.failure_state.failure() {
            return Err(failure);
        }
        if let Some(peer) = peer.filter(|&peer| peer >= self.size) {
            let message = format!("there is no rank {peer}: the group has {} ranks", self.size);
            return Err(Error::invalid(message));
        }
        let ready = CudaEvent::new(&self.context)?;
        ready.record(stream.unwrap_or(DEFAULT_STREAM))?;
        self.start_worker()?;
        Ok(PostedCompletion { ready_event: ready, completion: Some(done) })
    }

    /// Starts the worker thread at the first call.
    fn start_worker(&self) -> Result<()> {
        let mut is_started = lock(&self.is_started);
        if *is_started {
            return Ok(());
        }
        let buffers = StagingBuffers::new(&self.context, self.chunk)?;
        let (cpu, worker_state) = (Arc::clone(&self.cpu), Arc::clone(&self.failure_state));
        let (inbox, failure_state) = (Arc::clone(&self.inbox), Arc::clone(&self.failure_state));
        let worker =
            StagingWorker::new(self.chunk, buffers, (cpu, worker_state), Arc::clone(&inbox));
        thread::start("dist-staging", move || {
            let _end_guard = WorkerEndGuard(inbox, failure_state);
            worker.run();
        })?;
        let listener = Arc::clone(&self.inbox) as Arc<dyn DoorbellListener>;
        self.failure_state.add_listener(Arc::downgrade(&listener));
        *is_started = true;
        Ok(())
    }

    /// Wakes the worker thread after a failure of the group that the failure state may not have
    /// reported.
    pub(super) fn on_group_failure(&self) {
        self.inbox.doorbell.notify();
    }
}

impl DevicePointToPoint for StagingMessages {
    fn send(
        &self,
        message: SendRequest,
        stream: Option<usize>,
        done: Arc<dyn Completion>,
    ) -> Result<()> {
        let posted = self.prepare_post(Some(message.to), stream, done)?;
        self.inbox.push(WorkerEvent::Send(message, posted));
        Ok(())
    }

    fn receive(
        &self,
        message: ReceiveRequest,
        stream: Option<usize>,
        done: Arc<dyn Completion>,
    ) -> Result<()> {
        let ReceiveBuffer::Borrowed(into) = message.buffer else {
            return Err(Error::internal("a growable receive buffer in device memory"));
        };
        let posted = self.prepare_post(message.from, stream, done)?;
        self.inbox.push(WorkerEvent::Receive(message, into, posted));
        Ok(())
    }
}

impl Drop for StagingMessages {
    fn drop(&mut self) {
        let is_started = *lock(&self.is_started);
        if !is_started {
            return;
        }
        self.inbox.is_closing.store(true, Ordering::Release);
        self.inbox.doorbell.notify();
        let limit = Deadline::after(CLOSE_WAIT);
        let ended = || self.inbox.has_ended.load(Ordering::Acquire).then_some(());
        if wait_until(&self.inbox.doorbell, WaitPolicy::SLEEP_SOON, &limit, || None, ended).is_err()
        {
            crate::log!(
                LogLevel::Error,
                "the staging worker of the messages in device memory does not end"
            );
        }
    }
}

/// Marks the worker thread as ended when it ends for any reason.
struct WorkerEndGuard(Arc<WorkerInbox>, Arc<dyn GroupFailureState>);

impl Drop for WorkerEndGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let message = "a defect in libdist, please report it: the staging worker panicked";
            self.1.fail(&Error::internal(message));
        }
        self.0.has_ended.store(true, Ordering::Release);
        self.0.doorbell.notify();
    }
}

/// The completion of a control receive.
#[derive(Debug)]
struct ControlReceiveCompletion(Arc<WorkerInbox>);

impl Completion for ControlReceiveCompletion {
    fn complete(&self, outcome: Result<Delivery>) {
        let nothing = |delivery: Delivery| (delivery.peer, Vec::new());
        self.0.push(WorkerEvent::Control(outcome.map(nothing)));
    }

    fn complete_allocated(&self, delivery: Delivery, bytes: Vec<u8>) {
        self.0.push(WorkerEvent::Control(Ok((delivery.peer, bytes))));
    }
}

/// The completion of a control send. It owns the buffer until the control message is sent.
#[derive(Debug)]
struct ControlSendCompletion {
    _buffer: PooledBuffer,
}

impl Completion for ControlSendCompletion {
    fn complete(&self, outcome: Result<Delivery>) {
        // If the receiver is gone, the departure check or the failure of the group reports it.
        if let Err(error) = outcome {
            crate::log!(
                LogLevel::Debug,
                "a control message of a message in device memory was not sent: {error}"
            );
        }
    }
}

/// The completion of the piece in a half.
#[derive(Debug)]
struct PieceCompletion {
    inbox: Arc<WorkerInbox>,
    half: usize,
    is_outgoing: bool,
}

impl Completion for PieceCompletion {
    fn complete(&self, outcome: Result<Delivery>) {
        self.inbox.push(match self.is_outgoing {
            true => WorkerEvent::PieceSent(self.half, outcome),
            false => WorkerEvent::PieceReceived(self.half, outcome),
        });
    }
}

/// Returns the error for a message that no rank matched before its deadline.
fn match_timeout(deadline: &Deadline) -> Error {
    let waited = deadline.elapsed().as_millis();
    Error::new(ErrorKind::Timeout, format!("not matched within {waited} ms"))
}
