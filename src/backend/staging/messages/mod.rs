//! Messages in the memory of devices, which a thread of the group carries piece by piece through
//! staging memory of their own.
//!
//! 1. The sender offers a message by a letter ([`control`]); who has a place for it ([`matcher`])
//!    and a half of staging memory answers that there is room for a piece.
//! 2. For each such answer the sender has the device copy a piece to a half of its own, and sends
//!    it as a message of host memory, under a tag that belongs to this one.
//! 3. What has come is copied to the device. A message has ended for its sender when its last piece
//!    has gone, for its receiver when the device has all of it.
//!
//! A sender's half is taken only for a piece that somebody waits for with memory in hand, so halves
//! become free again whatever order ranks call in. Before the first answer a message is on nobody's
//! way: its time may pass, and nobody else is concerned. Afterwards whatever goes wrong fails the
//! group.
//!
//! They do not meet messages in host memory, whose tags are others.

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
use crate::device::stream::DEFAULT_STREAM;
use crate::device::{CudaContext, CudaEvent};
use crate::process::thread;
use crate::wait::doorbell::Doorbell;
use crate::wait::{WaitPolicy, wait_until};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use worker::StagingWorker;

/// How long a group that is left waits for its thread.
const CLOSE_WAIT: Duration = Duration::from_secs(10);

/// What the thread is told.
#[derive(Debug)]
enum WorkerEvent {
    Send(SendRequest, PostedCompletion),
    Receive(ReceiveRequest, Dst<'static>, PostedCompletion),
    /// A letter has come, or none can any more.
    Control(Result<(Rank, Vec<u8>)>),
    /// The piece in a half has gone, or has come.
    PieceSent(usize, Result<Delivery>),
    PieceReceived(usize, Result<Delivery>),
}

/// What every message has.
#[derive(Debug)]
struct PostedCompletion {
    /// The device is there when its memory is ready.
    ready_event: CudaEvent,
    /// Until it has been told.
    completion: Option<Arc<dyn Completion>>,
}

impl PostedCompletion {
    fn complete(mut self, outcome: Result<Delivery>) {
        self.completion.take().into_iter().for_each(|done| done.complete(outcome.clone()));
    }
}

impl Drop for PostedCompletion {
    /// Whatever happens, somebody waits for it.
    fn drop(&mut self) {
        if let Some(done) = self.completion.take() {
            done.complete(Err(Error::internal("a message on a device was lost")));
        }
    }
}

/// Where the thread hears of everything. It knows nothing of the engine, which keeps it.
#[derive(Debug, Default)]
struct WorkerInbox {
    events: Mutex<Vec<WorkerEvent>>,
    doorbell: Doorbell,
    is_closing: AtomicBool,
    has_ended: AtomicBool,
}

/// The messages of a group on its device.
#[derive(Debug)]
pub(super) struct StagingMessages {
    context: Arc<CudaContext>,
    chunk: usize,
    size: WorldSize,
    cpu: Arc<dyn Backend>,
    failure_state: Arc<dyn GroupFailureState>,
    inbox: Arc<WorkerInbox>,
    /// The thread has been started.
    is_started: Mutex<bool>,
}

impl WorkerInbox {
    fn push(&self, event: WorkerEvent) {
        self.lock_events().push(event);
        self.doorbell.notify();
    }

    fn lock_events(&self) -> MutexGuard<'_, Vec<WorkerEvent>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// What every message needs: a thread that carries it, and the moment when its memory is ready.
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

    /// Starts the thread, the first time.
    fn start_worker(&self) -> Result<()> {
        let mut is_started = self.is_started.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// The group has failed, which its fate does not tell everybody.
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
            return Err(Error::internal("a message of any length on a device"));
        };
        let posted = self.prepare_post(message.from, stream, done)?;
        self.inbox.push(WorkerEvent::Receive(message, into, posted));
        Ok(())
    }
}

impl Drop for StagingMessages {
    fn drop(&mut self) {
        let is_started = *self.is_started.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_started {
            return;
        }
        self.inbox.is_closing.store(true, Ordering::Release);
        self.inbox.doorbell.notify();
        let limit = Deadline::after(CLOSE_WAIT);
        let ended = || self.inbox.has_ended.load(Ordering::Acquire).then_some(());
        if wait_until(&self.inbox.doorbell, WaitPolicy::SLEEP_SOON, &limit, || None, ended).is_err()
        {
            crate::log!(LogLevel::Error, "messages on a device do not end");
        }
    }
}

/// Whatever ends the thread, it has ended.
struct WorkerEndGuard(Arc<WorkerInbox>, Arc<dyn GroupFailureState>);

impl Drop for WorkerEndGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let message = "a defect in libdist, please report it: a panic in a message on a device";
            self.1.fail(&Error::internal(message));
        }
        self.0.has_ended.store(true, Ordering::Release);
        self.0.doorbell.notify();
    }
}

/// Hears of a letter.
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

/// Keeps a letter until it has gone.
#[derive(Debug)]
struct ControlSendCompletion {
    _buffer: PooledBuffer,
}

impl Completion for ControlSendCompletion {
    fn complete(&self, outcome: Result<Delivery>) {
        // Whom it does not reach is known to be gone by other ways.
        if let Err(error) = outcome {
            crate::log!(LogLevel::Debug, "a letter of a message on a device: {error}");
        }
    }
}

/// Hears of the piece in a half.
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

/// A message that waits for another rank has waited for too long.
fn match_timeout(deadline: &Deadline) -> Error {
    let waited = deadline.elapsed().as_millis();
    Error::new(ErrorKind::Timeout, format!("not matched within {waited} ms"))
}
