//! Posts a checked message to the messaging engine of the back end.
//!
//! Messages never wait for collectives: they do not enter the group's queue, and the engine
//! matches, transfers and completes them. Each message has a sequence number and an entry in the
//! flight recorder. The message's work (the handle of the operation) holds a reference to the group
//! until the engine has completed the message.

use crate::api::collective::call_options::CallOptions;
use crate::api::group::process_group::Group;
use crate::api::observe::recorder::{self, OperationRecord};
use crate::api::p2p::message_buffer::{BytesReceiveCompletion, MessageBuffer};
use crate::api::p2p::message_descriptor::MessageDescriptor;
use crate::api::p2p::sendrecv::SendRecvIssue;
use crate::api::work::handle::{PendingMessage, Work, WorkKind};
use crate::backend::{DeviceBackend, DevicePointToPoint};
use crate::base::deadline::Deadline;
use crate::base::debug;
use crate::base::error::{Error, Result};
use crate::base::gpu::GpuTarget;
use crate::transport::{ReceiveBuffer, ReceiveRequest, SendRequest};
use std::sync::Arc;

/// The sequence number and the flight recorder's entry of a message that was issued.
#[derive(Debug)]
pub struct IssuedMessage {
    pub(super) sequence: u64,
    pub(super) record: OperationRecord,
}

/// The arguments of [`Group::post_message`] that depend on the call.
#[derive(Debug)]
pub(in crate::api) struct MessageIssue {
    /// The GPU and the stream, if the buffer is in device memory.
    pub(in crate::api) gpu: Option<GpuTarget>,
    pub(in crate::api) deadline: Deadline,
    /// The number and the entry of the message, if an attempt without a work has already recorded
    /// it.
    pub(in crate::api) issued: Option<IssuedMessage>,
}

impl Group {
    /// Assigns a number to a message and records it.
    pub(super) fn record_issue(
        &self,
        message: &MessageDescriptor,
        issued_ns: u64,
    ) -> IssuedMessage {
        let sequence = self.next_message_number();
        let record = self.observer.record_message(message, sequence, issued_ns);
        IssuedMessage { sequence, record }
    }

    fn device_messaging_engine(&self) -> Result<&dyn DevicePointToPoint> {
        let engine = self.backend.device().and_then(DeviceBackend::point_to_point);
        engine.ok_or_else(|| Error::internal("the back end has no device messaging engine"))
    }

    /// Posts a message to the messaging engine, or to the device messaging engine if `gpu` is set.
    /// The engine ends the work when the message has completed.
    pub(in crate::api) fn post_message(
        self: &Arc<Self>,
        work: &Arc<Work>,
        buffer: MessageBuffer,
        MessageIssue { gpu, deadline, issued }: MessageIssue,
        options: &CallOptions,
    ) -> Result<()> {
        let WorkKind::Message(message) = work.kind() else {
            return Err(Error::internal("a work that is not a message was posted as a message"));
        };
        let engine = self.messaging_engine()?;
        let device_engine = gpu.map(|_| self.device_messaging_engine()).transpose()?;
        let stream = gpu.and_then(|gpu| gpu.stream);
        if let (Some(bytes), None) = (buffer.outgoing(), gpu) {
            let nan_check = options.nan_check.max(debug::nan_check());
            let title = |_| format!("{message}: the message");
            self.check_for_nan(message.dtype, nan_check, [bytes].into_iter(), title)?;
        }
        if let Err(error) = self.queue.begin_work() {
            issued.into_iter().for_each(|issued| issued.record.end(&Err(error.clone())));
            return Err(error);
        }
        let issued_ns = recorder::recorder_ns(deadline.started());
        let IssuedMessage { sequence, record } =
            issued.unwrap_or_else(|| self.record_issue(&message, issued_ns));
        work.keep_until_done(PendingMessage { group: Arc::clone(self), record });
        work.mark_issued(sequence, deadline);
        let MessageDescriptor { peer, tag, dtype, .. } = message;
        let done = Arc::clone(work);
        let is_synchronous = options.synchronous;
        let posted = match (buffer, peer, tag) {
            (MessageBuffer::Send(bytes), Some(to), Some(tag)) => {
                let message = SendRequest { to, tag, dtype, bytes, deadline, is_synchronous };
                match device_engine {
                    Some(device_engine) => device_engine.send(message, stream, done),
                    None => engine.send(message, done),
                }
            }
            (MessageBuffer::Receive(into), from, tag) => {
                let into = ReceiveBuffer::Borrowed(into);
                let message = ReceiveRequest { from, tag, dtype, buffer: into, deadline };
                match device_engine {
                    Some(device_engine) => device_engine.receive(message, stream, done),
                    None => engine.receive(message, done),
                }
            }
            (MessageBuffer::ReceiveAllocated { max_bytes, handler }, from, tag) => {
                let into = ReceiveBuffer::Allocated { max_bytes };
                let message = ReceiveRequest { from, tag, dtype, buffer: into, deadline };
                engine.receive(message, Arc::new(BytesReceiveCompletion::new(done, handler)))
            }
            (MessageBuffer::ReceiveMatched(matched, into), ..) => {
                matched.post_receive(engine, into, dtype, deadline, done)
            }
            (MessageBuffer::SendRecv(exchange), ..) => {
                // The work has the number and the entry of the receive. The send gets a number and
                // an entry of its own.
                let outgoing = exchange.outgoing(dtype, options.label);
                let record = self.record_issue(&outgoing, issued_ns).record;
                let issue = SendRecvIssue { deadline, is_synchronous, record };
                exchange.post(engine, &message, issue, work)
            }
            (MessageBuffer::Send(_), ..) => Err(Error::internal("a send without a rank or a tag")),
        };
        posted.map_err(|error| {
            let error = work.with_message_context(error);
            self.record_returned_error(&error);
            work.end(Err(error.clone()));
            error
        })
    }
}
