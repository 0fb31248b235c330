//! The inbox of the worker thread of staged messages, with the events that arrive in it. The
//! threads that post messages and the completions of the matching engine push events. The worker
//! thread takes them out.

use crate::backend::buffer_pool::PooledBuffer;
use crate::backend::{Completion, Delivery, DoorbellListener, ReceiveRequest, SendRequest};
use crate::base::buffer::Dst;
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use crate::base::log::LogLevel;
use crate::base::sync::lock;
use crate::device::CudaEvent;
use crate::wait::doorbell::Doorbell;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard};

/// An event for the worker thread.
#[derive(Debug)]
pub(super) enum WorkerEvent {
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
pub(super) struct PostedCompletion {
    /// The event in the caller's stream after which the buffer is ready.
    pub(super) ready_event: CudaEvent,
    /// The completion to call; `None` after the call.
    pub(super) completion: Option<Arc<dyn Completion>>,
}

impl PostedCompletion {
    pub(super) fn complete(mut self, outcome: Result<Delivery>) {
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
pub(super) struct WorkerInbox {
    pub(super) events: Mutex<Vec<WorkerEvent>>,
    pub(super) doorbell: Doorbell,
    pub(super) is_closing: AtomicBool,
    pub(super) has_ended: AtomicBool,
}

impl WorkerInbox {
    pub(super) fn push(&self, event: WorkerEvent) {
        self.lock_events().push(event);
        self.doorbell.notify();
    }

    pub(super) fn lock_events(&self) -> MutexGuard<'_, Vec<WorkerEvent>> {
        lock(&self.events)
    }
}

impl DoorbellListener for WorkerInbox {
    fn on_doorbell(&self) {
        self.doorbell.notify();
    }
}

/// The completion of a control receive.
#[derive(Debug)]
pub(super) struct ControlReceiveCompletion(pub(super) Arc<WorkerInbox>);

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
pub(super) struct ControlSendCompletion {
    pub(super) _buffer: PooledBuffer,
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
pub(super) struct PieceCompletion {
    pub(super) inbox: Arc<WorkerInbox>,
    pub(super) half: usize,
    pub(super) is_outgoing: bool,
}

impl Completion for PieceCompletion {
    fn complete(&self, outcome: Result<Delivery>) {
        self.inbox.push(match self.is_outgoing {
            true => WorkerEvent::PieceSent(self.half, outcome),
            false => WorkerEvent::PieceReceived(self.half, outcome),
        });
    }
}
