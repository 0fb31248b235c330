//! The caller's buffer of a message, and the completion of a receive for which the caller gave no
//! buffer.

use crate::api::collective::bytes::BytesHandler;
use crate::api::p2p::message_descriptor::MessageDescriptor;
use crate::api::p2p::probe::MatchedMessage;
use crate::api::p2p::sendrecv::SendRecv;
use crate::api::work::handle::Work;
use crate::backend::{DeviceMessage, DeviceTransfer};
use crate::base::buffer::{Dst, Src};
use crate::base::error::Result;
use crate::base::sync::lock;
use crate::transport::{Completion, Delivery};
use std::sync::{Arc, Mutex};

/// The buffer that the caller gave for a message. The library may use the buffer until the
/// message's work (the handle of the asynchronous operation) has ended.
#[derive(Debug)]
pub(in crate::api) enum MessageBuffer {
    Send(Src<'static>),
    Receive(Dst<'static>),
    /// The caller gave no buffer. The engine allocates memory for the message, and passes the
    /// message to the handler.
    ReceiveAllocated {
        max_bytes: usize,
        handler: BytesHandler,
    },
    /// The receive buffer for a message that a probe has already matched.
    ReceiveMatched(Arc<MatchedMessage>, Dst<'static>),
    /// The buffers of a send and a receive in one call. The message of the work is the receive.
    SendRecv(SendRecv),
}

impl MessageBuffer {
    /// Returns the bytes to send, or `None` if this is only a receive.
    pub(super) fn outgoing(&self) -> Option<Src<'static>> {
        match self {
            Self::Send(bytes) => Some(*bytes),
            Self::SendRecv(exchange) => Some(exchange.send_bytes),
            Self::Receive(_) | Self::ReceiveAllocated { .. } | Self::ReceiveMatched(..) => None,
        }
    }

    /// Returns the buffer of the work's message. The back end handles the message in host or device
    /// memory, depending on where this buffer is.
    pub(super) fn located_bytes(&self) -> Src<'static> {
        match self {
            Self::Send(bytes) => *bytes,
            Self::Receive(into) | Self::ReceiveMatched(_, into) => into.as_src(),
            Self::SendRecv(exchange) => exchange.recv_buffer.as_src(),
            Self::ReceiveAllocated { .. } => Src::empty(),
        }
    }

    /// Calls `visit` for each buffer. The second argument of `visit` is true if the operation
    /// writes the buffer.
    pub(in crate::api) fn visit(&self, visit: &mut dyn FnMut(Src<'_>, bool)) {
        match self {
            Self::Send(bytes) => visit(*bytes, false),
            Self::Receive(into) | Self::ReceiveMatched(_, into) => visit(into.as_src(), true),
            // If the two buffers overlap, the incoming bytes are copied after the send has ended,
            // so the overlap is no conflict. Then only the receive buffer is visited.
            Self::SendRecv(exchange) => {
                if !exchange.overlaps() {
                    visit(exchange.send_bytes, false);
                }
                visit(exchange.recv_buffer.as_src(), true);
            }
            Self::ReceiveAllocated { .. } => {}
        }
    }

    /// Returns the message in the form for a back end that enqueues it on a device. Returns `None`
    /// for calls that support host memory only.
    pub(in crate::api) fn device_message(
        &self,
        message: &MessageDescriptor,
    ) -> Option<DeviceMessage<'static>> {
        let transfer = match self {
            Self::Send(bytes) => DeviceTransfer::Send(*bytes),
            Self::Receive(into) => DeviceTransfer::Recv(*into),
            Self::ReceiveAllocated { .. } | Self::ReceiveMatched(..) | Self::SendRecv(_) => {
                return None;
            }
        };
        Some(DeviceMessage { peer: message.peer?, dtype: message.dtype, transfer })
    }
}

/// The completion of a receive into memory that the engine allocates. This completion passes the
/// message to the handler, and then ends the work.
#[derive(Debug)]
pub(super) struct BytesReceiveCompletion {
    work: Arc<Work>,
    handler: Mutex<Option<BytesHandler>>,
}

impl BytesReceiveCompletion {
    pub(super) fn new(work: Arc<Work>, handler: BytesHandler) -> Self {
        Self { work, handler: Mutex::new(Some(handler)) }
    }
}

impl Completion for BytesReceiveCompletion {
    fn complete(&self, outcome: Result<Delivery>) {
        self.work.complete(outcome);
    }

    fn complete_allocated(&self, delivery: Delivery, bytes: Vec<u8>) {
        let handler = lock(&self.handler).take();
        let delivered = handler.map_or(Ok(()), |handler| handler.deliver(vec![bytes]));
        self.work.complete(delivered.map(|()| delivery));
    }

    fn work_id(&self) -> usize {
        self.work.id()
    }
}
