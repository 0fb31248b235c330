//! The inbox of the worker thread for staged messages. The threads that post messages push events
//! into the inbox, and so do the completions of the matching engine (the part of the host back end
//! that matches sends and receives). The worker thread takes the events out.

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
    /// A caller has posted a send.
    Send(SendRequest, PostedCompletion),
    /// A caller has posted a receive into this buffer.
    Receive(ReceiveRequest, Dst<'static>, PostedCompletion),
    /// A control message has arrived from this rank. An error means that no further control message
    /// can arrive.
    Control(Result<(Rank, Vec<u8>)>),
    /// The matching engine has sent the piece in this half of the staging buffer.
    PieceSent(usize, Result<Delivery>),
    /// The matching engine has received a piece into this half of the staging buffer.
    PieceReceived(usize, Result<Delivery>),
}

/// The completion of a posted message.
#[derive(Debug)]
pub(super) struct PostedCompletion {
    /// The CUDA event in the caller's stream. When it is complete, the buffer of the message is
    /// ready.
    pub(super) ready_event: CudaEvent,
    /// The caller's completion. It is `None` after it was called.
    pub(super) completion: Option<Arc<dyn Completion>>,
}

impl PostedCompletion {
    pub(super) fn complete(mut self, outcome: Result<Delivery>) {
        self.completion.take().into_iter().for_each(|done| done.complete(outcome.clone()));
    }
}

impl Drop for PostedCompletion {
    /// Completes the message with an error if it was dropped without a completion, because a caller
    /// waits for the completion.
    fn drop(&mut self) {
        if let Some(done) = self.completion.take() {
            done.complete(Err(Error::internal(
                "a message in device memory was dropped without a completion",
            )));
        }
    }
}

/// The inbox of the worker thread. The completions in the matching engine hold references to the
/// inbox. The inbox holds no reference to the matching engine, so there is no reference cycle.
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

/// The completion of the receive for the next control message.
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

/// The completion of a send of a control message or an empty piece. It owns the buffer until the
/// message is sent.
#[derive(Debug)]
pub(super) struct ControlSendCompletion {
    pub(super) _buffer: PooledBuffer,
}

impl Completion for ControlSendCompletion {
    fn complete(&self, outcome: Result<Delivery>) {
        // If the receiver has left, the worker's departure check or the failure of the group
        // reports that.
        if let Err(error) = outcome {
            crate::log!(
                LogLevel::Debug,
                "a control message of a message in device memory was not sent: {error}"
            );
        }
    }
}

/// The completion of the send or receive of the piece in a half of a staging buffer.
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
