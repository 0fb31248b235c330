//! Messages between two ranks: send, receive, and sendrecv (a send and a receive at the same time).
//!
//! The functions of this file check a call and return it as a prepared call, which is issued later.
//! The issue creates a work (the handle of an asynchronous operation). To save its cost, a blocking
//! call tries the fast path before that, which sends or receives without a work
//! ([`Group::try_send_now`], [`Group::try_receive_now`]).

use crate::api::collective::bytes::BytesHandler;
use crate::api::collective::call_options::CallOptions;
use crate::api::collective::prepared_call::PreparedCall;
use crate::api::group::process_group::Group;
use crate::api::observe::recorder;
use crate::api::p2p::message_buffer::MessageBuffer;
use crate::api::p2p::message_descriptor::MessageDescriptor;
use crate::api::p2p::post::IssuedMessage;
use crate::api::p2p::probe::{MatchedMessage, MessageEnvelope};
use crate::api::p2p::sendrecv::SendRecv;
use crate::base::buffer::{Dst, Src};
use crate::base::debug::{self, NanCheck};
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorContext as _, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::transport::{Delivery, ImmediateMessage, PointToPoint};
use std::sync::Arc;

/// The result of an attempt to receive without a work.
#[derive(Debug)]
pub enum ImmediateReceive {
    /// The message was received.
    Received(Delivery),
    /// No message was available, or the fast path does not support the call. The caller continues
    /// with [`Group::receive`]. If the attempt has already recorded the message, the caller passes
    /// the record to [`PreparedCall::with_issued_message`].
    NotReceived(Option<IssuedMessage>),
}

/// The send side or the receive side of a sendrecv.
#[derive(Clone, Copy, Debug)]
pub struct SendRecvSide<Bytes, Peer, Tag> {
    /// The buffer of the message.
    pub bytes: Bytes,
    /// The other rank.
    pub peer: Peer,
    /// The tag.
    pub tag: Tag,
}

impl Group {
    /// Checks a send to one rank.
    ///
    /// # Errors
    /// `InvalidArgument`; `Unsupported` if the back end does not support messages.
    pub fn send(
        self: &Arc<Self>,
        bytes: Src<'static>,
        dtype: DataType,
        peer: Rank,
        tag: u32,
        options: CallOptions,
    ) -> Result<PreparedCall> {
        let message = MessageDescriptor::outgoing(peer, tag, dtype, bytes.len(), options.label);
        self.prepare_message(message, MessageBuffer::Send(bytes), options)
    }

    /// Checks a receive from one rank or any rank, with one tag or any tag.
    ///
    /// # Errors
    /// The errors of [`Group::send`].
    pub fn receive(
        self: &Arc<Self>,
        into: Dst<'static>,
        dtype: DataType,
        peer: Option<Rank>,
        tag: Option<u32>,
        options: CallOptions,
    ) -> Result<PreparedCall> {
        let message = MessageDescriptor::incoming(peer, tag, dtype, into.len(), options.label);
        self.prepare_message(message, MessageBuffer::Receive(into), options)
    }

    /// Checks a receive of a byte message of any length up to `max_bytes`. The library passes the
    /// received message to `handler`.
    ///
    /// # Errors
    /// The errors of [`Group::send`].
    pub fn receive_bytes(
        self: &Arc<Self>,
        max_bytes: usize,
        handler: BytesHandler,
        peer: Option<Rank>,
        tag: Option<u32>,
        options: CallOptions,
    ) -> Result<PreparedCall> {
        let dtype = DataType::U8;
        let message = MessageDescriptor::incoming(peer, tag, dtype, max_bytes, options.label);
        let buffer = MessageBuffer::ReceiveAllocated { max_bytes, handler };
        self.prepare_message(message, buffer, options)
    }

    fn prepare_message(
        self: &Arc<Self>,
        message: MessageDescriptor,
        buffer: MessageBuffer,
        options: CallOptions,
    ) -> Result<PreparedCall> {
        self.check_message(message.peer, message.tag, &options).context(|| message)?;
        let gpu = self.locate_message(&message, buffer.located_bytes(), &options);
        let gpu = gpu.context(|| message)?;
        if let Some(gpu) = gpu.filter(|_| options.synchronous) {
            let text = format!(
                "the buffer is in memory of device {}, but DIST_CALL_SYNCHRONOUS supports host memory only",
                gpu.device
            );
            return Err(Error::new(ErrorKind::Unsupported, text)).context(|| message);
        }
        Ok(PreparedCall::of_message(self, message, buffer, gpu, options))
    }

    /// Checks a send and a receive that run at the same time.
    ///
    /// # Errors
    /// The errors of [`Group::send`]; `Unsupported` for buffers in device memory.
    pub fn sendrecv(
        self: &Arc<Self>,
        send: SendRecvSide<Src<'static>, Rank, u32>,
        receive: SendRecvSide<Dst<'static>, Option<Rank>, Option<u32>>,
        dtype: DataType,
        options: CallOptions,
    ) -> Result<PreparedCall> {
        let buffers = SendRecv {
            send_bytes: send.bytes,
            recv_buffer: receive.bytes,
            to: send.peer,
            tag: send.tag,
        };
        let outgoing = buffers.outgoing(dtype, options.label);
        let SendRecvSide { bytes: into, peer, tag } = receive;
        let incoming = MessageDescriptor::incoming(peer, tag, dtype, into.len(), options.label);
        for message in [&outgoing, &incoming] {
            self.check_message(message.peer, message.tag, &options).context(|| *message)?;
        }
        for (message, bytes) in [(&outgoing, send.bytes), (&incoming, into.as_src())] {
            self.reject_device_buffer(message, bytes, &options).context(|| *message)?;
        }
        Ok(PreparedCall::of_message(
            self,
            incoming,
            MessageBuffer::SendRecv(buffers),
            None,
            options,
        ))
    }

    /// Tries to send a message without a work, for a blocking call. Returns false if nothing was
    /// sent. The reasons are that the send cannot complete immediately, that a debug check is on,
    /// or that an argument is invalid. The caller then continues with [`Group::send`], which
    /// reports an invalid argument.
    pub fn try_send_now(
        &self,
        bytes: Src<'static>,
        dtype: DataType,
        to: Rank,
        tag: u32,
        options: &CallOptions,
    ) -> bool {
        // A synchronous send completes only after a receive has matched it, so it never completes
        // immediately.
        if options.synchronous {
            return false;
        }
        let message = ImmediateMessage { peer: Some(to), tag: Some(tag), dtype, bytes };
        let Some(engine) = self.fast_path_engine(message.peer, message.tag, options) else {
            return false;
        };
        let is_sent = engine.try_send_immediate(&message);
        if is_sent {
            // The message is recorded after it was sent, so that recording does not delay it.
            let message = MessageDescriptor::outgoing(to, tag, dtype, bytes.len(), options.label);
            let issued = self.record_issue(&message, recorder::recorder_now_ns());
            issued.record.end_without_clock(&Ok(()));
        }
        is_sent
    }

    /// Tries to receive a message without a work, for a blocking call, if the message is available
    /// immediately (see [`Group::try_send_now`]).
    pub fn try_receive_now(
        &self,
        into: Dst<'static>,
        dtype: DataType,
        peer: Option<Rank>,
        tag: Option<u32>,
        options: &CallOptions,
    ) -> ImmediateReceive {
        let Some(engine) = self.fast_path_engine(peer, tag, options) else {
            return ImmediateReceive::NotReceived(None);
        };
        let message = MessageDescriptor::incoming(peer, tag, dtype, into.len(), options.label);
        // The receive is recorded before the message arrives, so that recording does not delay the
        // receiver after the arrival.
        let issued_message = self.record_issue(&message, recorder::recorder_now_ns());
        match engine.try_receive_immediate(&ImmediateMessage { peer, tag, dtype, bytes: into }) {
            Some(delivery) => {
                issued_message.record.end_without_clock(&Ok(()));
                ImmediateReceive::Received(delivery)
            }
            None => ImmediateReceive::NotReceived(Some(issued_message)),
        }
    }

    /// Returns the messaging engine if this message may be transferred without a work.
    fn fast_path_engine(
        &self,
        peer: Option<Rank>,
        tag: Option<u32>,
        options: &CallOptions,
    ) -> Option<&dyn PointToPoint> {
        let has_debug_checks = debug::has_expensive_checks() || options.nan_check != NanCheck::Off;
        let may_be_on_device = self.device.is_some() || options.is_for_device();
        if has_debug_checks || may_be_on_device {
            return None;
        }
        self.check_message(peer, tag, options).ok()
    }
}

impl MatchedMessage {
    /// Checks a receive of this message, and claims the message so that no other call can receive
    /// it. On error, the message is not claimed.
    ///
    /// # Errors
    /// `Mismatch` if the message has another type or exceeds the buffer; `InvalidHandle` if the
    /// group has ended or another call receives the message; `InvalidArgument`; `Unsupported`.
    pub fn receive(
        self: &Arc<Self>,
        into: Dst<'static>,
        dtype: DataType,
        options: CallOptions,
    ) -> Result<PreparedCall> {
        let group = self.group()?;
        let MessageEnvelope { from, tag, .. } = *self.envelope();
        let (peer, tag) = (Some(from), Some(tag));
        let message = MessageDescriptor::incoming(peer, tag, dtype, into.len(), options.label);
        self.check_fit(dtype, into.len()).context(|| message)?;
        group.check_message(peer, tag, &options).context(|| message)?;
        group.reject_device_buffer(&message, into.as_src(), &options).context(|| message)?;
        self.claim()?;
        let buffer = MessageBuffer::ReceiveMatched(Arc::clone(self), into);
        Ok(PreparedCall::of_message(&group, message, buffer, None, options))
    }
}
