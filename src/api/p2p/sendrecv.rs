//! A send and a receive at the same time, with a single work (the handle of the asynchronous
//! operation) for both (`dist_sendrecv`).
//!
//! The receive is posted before the send, so a cycle of ranks cannot deadlock. The work has the
//! number and the recorder entry of the receive. The work ends when both messages have ended. If
//! the receive failed, the work has the error of the receive. Otherwise, if the send failed, the
//! work has the error of the send.
//!
//! If the two buffers overlap, the engine allocates memory for the incoming message. When the send
//! has ended, the bytes are copied from this memory to the caller's buffer.

use crate::api::observe::recorder::OperationRecord;
use crate::api::p2p::message_descriptor::MessageDescriptor;
use crate::api::work::handle::Work;
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::{ErrorContext as _, Result};
use crate::base::ids::Rank;
use crate::base::label::Label;
use crate::base::sync::lock;
use crate::kernel;
use crate::transport::{
    Completion, Delivery, PointToPoint, ReceiveBuffer, ReceiveRequest, SendRequest,
};
use std::sync::{Arc, Mutex};

/// The buffers of both messages, and the destination and tag of the outgoing message.
#[derive(Clone, Copy, Debug)]
pub(in crate::api) struct SendRecv {
    pub(super) send_bytes: Src<'static>,
    pub(super) recv_buffer: Dst<'static>,
    pub(super) to: Rank,
    pub(super) tag: u32,
}

/// The arguments of [`SendRecv::post`] that depend on the call.
#[derive(Debug)]
pub(super) struct SendRecvIssue {
    pub(super) deadline: Deadline,
    pub(super) is_synchronous: bool,
    /// The flight recorder's entry of the send.
    pub(super) record: OperationRecord,
}

impl SendRecv {
    /// Returns whether the two buffers overlap, so that the incoming message would overwrite the
    /// outgoing message.
    pub(super) fn overlaps(&self) -> bool {
        let (send, recv) =
            (self.send_bytes.as_ptr().addr(), self.recv_buffer.as_src().as_ptr().addr());
        send < recv + self.recv_buffer.len() && recv < send + self.send_bytes.len()
    }

    /// Returns the outgoing message's description for the recorder.
    pub(super) fn outgoing(&self, dtype: DataType, label: Label) -> MessageDescriptor {
        MessageDescriptor::outgoing(self.to, self.tag, dtype, self.send_bytes.len(), label)
    }

    /// Posts both messages to the engine. `incoming` describes the receive, which is the message of
    /// the work.
    pub(super) fn post(
        &self,
        engine: &dyn PointToPoint,
        incoming: &MessageDescriptor,
        SendRecvIssue { deadline, is_synchronous, record }: SendRecvIssue,
        work: &Arc<Work>,
    ) -> Result<()> {
        let (dtype, to, tag, bytes) = (incoming.dtype, self.to, self.tag, self.send_bytes);
        let max_bytes = self.recv_buffer.len();
        let into = if self.overlaps() {
            ReceiveBuffer::Allocated { max_bytes }
        } else {
            ReceiveBuffer::Borrowed(self.recv_buffer)
        };
        let (from, tag_wanted) = (incoming.peer, incoming.tag);
        let receive = ReceiveRequest { from, tag: tag_wanted, dtype, buffer: into, deadline };
        let send = SendRequest { to, tag, dtype, bytes, deadline, is_synchronous };
        let state = Arc::new(SendRecvState {
            work: Arc::clone(work),
            buffers: *self,
            outcomes: Mutex::new(SendRecvOutcomes {
                received: None,
                sent: None,
                record: Some(record),
            }),
        });
        let received = Arc::new(SendRecvReceiveCompletion(Arc::clone(&state)));
        let sent = Arc::new(SendRecvSendCompletion(Arc::clone(&state)));
        engine
            .exchange(receive, received, send, sent)
            .inspect_err(|error| state.end_record(&Err(error.clone())))
    }
}

/// The state that the completions of both messages share.
#[derive(Debug)]
struct SendRecvState {
    work: Arc<Work>,
    buffers: SendRecv,
    outcomes: Mutex<SendRecvOutcomes>,
}

/// The outcomes of the two messages.
#[derive(Debug)]
struct SendRecvOutcomes {
    /// The outcome of the receive, and the message if the engine has allocated memory for it.
    received: Option<(Result<Delivery>, Option<Vec<u8>>)>,
    sent: Option<Result<()>>,
    /// The entry of the send in the flight recorder. `None` after the entry has ended.
    record: Option<OperationRecord>,
}

#[derive(Debug)]
struct SendRecvReceiveCompletion(Arc<SendRecvState>);

#[derive(Debug)]
struct SendRecvSendCompletion(Arc<SendRecvState>);

impl SendRecvState {
    /// Stores the outcome of a message with `update`. Ends the work if both messages have ended.
    fn record_message_end(&self, update: impl FnOnce(&mut SendRecvOutcomes)) {
        let both_outcomes = {
            let mut ends = lock(&self.outcomes);
            update(&mut ends);
            match (&ends.received, &ends.sent) {
                (Some(_), Some(_)) => ends.received.take().zip(ends.sent.take()),
                _ => None,
            }
        };
        let Some(((received, allocated), sent)) = both_outcomes else { return };
        let outcome = received.and_then(|delivery| sent.map(|()| delivery));
        if let (Ok(delivery), Some(bytes)) = (&outcome, allocated) {
            let into = self.buffers.recv_buffer.slice(0, delivery.bytes);
            kernel::copy(into, Src::from(bytes.as_slice()));
        }
        self.work.complete(outcome);
    }

    fn end_record(&self, outcome: &Result<()>) {
        let record = lock(&self.outcomes).record.take();
        record.into_iter().for_each(|record| record.end(outcome));
    }
}

impl Completion for SendRecvReceiveCompletion {
    fn complete(&self, outcome: Result<Delivery>) {
        self.0.record_message_end(|ends| ends.received = Some((outcome, None)));
    }

    fn is_awaited(&self) -> bool {
        self.0.work.is_awaited()
    }

    fn work_id(&self) -> usize {
        self.0.work.id()
    }

    fn complete_allocated(&self, delivery: Delivery, bytes: Vec<u8>) {
        self.0.record_message_end(|ends| ends.received = Some((Ok(delivery), Some(bytes))));
    }
}

impl Completion for SendRecvSendCompletion {
    fn complete(&self, outcome: Result<Delivery>) {
        let SendRecv { to, tag, .. } = self.0.buffers;
        let outcome = outcome.map(drop).context(|| format!("the send to rank {to}, tag {tag}"));
        self.0.end_record(&outcome);
        self.0.record_message_end(|ends| ends.sent = Some(outcome));
    }

    fn is_awaited(&self) -> bool {
        self.0.work.is_awaited()
    }

    fn work_id(&self) -> usize {
        self.0.work.id()
    }
}
