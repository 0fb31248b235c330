//! Messages between two ranks: what is checked before the engine sees one, and what its work says
//! about it.
//!
//! Messages never wait behind collectives: they go to the back end's engine at once, which matches,
//! carries and completes them.

use super::bytes::{BytesHandler, BytesReceiveCompletion};
use super::call::CallOptions;
use super::group::Group;
use super::issue::PreparedCall;
use super::probe::MatchedMessage;
use super::recorder::{self, OperationRecord};
use super::sendrecv::SendRecv;
use super::work::{PendingMessage, Work, WorkKind};
use crate::backend::DevicePointToPoint;
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::Deadline;
use crate::base::debug::{self, NanCheck};
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorContext as _, ErrorKind, Result};
use crate::base::gpu::GpuTarget;
use crate::base::ids::Rank;
use crate::base::label::{Label, LabelSuffix};
use crate::transport::{
    Delivery, ImmediateMessage, LARGEST_TAG, PointToPoint, ReceiveBuffer, ReceiveRequest,
    SendRequest,
};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What is said about a message. A receive may leave open from whom and under which tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageDescriptor {
    /// This rank sends it.
    pub is_outgoing: bool,
    /// The other rank.
    pub peer: Option<Rank>,
    /// The tag.
    pub tag: Option<u32>,
    /// The type of its elements.
    pub dtype: DataType,
    /// How many there are, or may be; `usize::MAX` for any number.
    pub count: usize,
    /// The label of the call, for the reports of this rank. Messages are matched without it.
    pub label: Label,
}

impl fmt::Display for MessageDescriptor {
    /// For instance `send "grad" to rank 3, tag 7 (f32, count 10)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (verb, towards) = if self.is_outgoing { ("send", "to") } else { ("receive", "from") };
        write!(f, "{verb}{} {towards} ", LabelSuffix(self.label))?;
        match self.peer {
            Some(peer) => write!(f, "rank {peer}")?,
            None => f.write_str("any rank")?,
        }
        match self.tag {
            Some(tag) => write!(f, ", tag {tag}")?,
            None => f.write_str(", any tag")?,
        }
        match self.count {
            usize::MAX => write!(f, " ({}, any count)", self.dtype),
            count => write!(f, " ({}, count {count})", self.dtype),
        }
    }
}

/// That a message has been issued: its number, and its entry in the recorder.
#[derive(Debug)]
pub struct IssuedMessage {
    sequence: u64,
    record: OperationRecord,
}

/// What has become of a receive that was tried without a work.
#[derive(Debug)]
pub enum ImmediateReceive {
    /// The message is here.
    Received(Delivery),
    /// It is not: [`Group::receive`] goes on, which is given what was noted of it
    /// ([`PreparedCall::with_issued_message`]).
    NotReceived(Option<IssuedMessage>),
}

/// The caller's memory, lent until the message's work has ended.
#[derive(Debug)]
pub(super) enum MessageBuffer {
    Send(Src<'static>),
    Receive(Dst<'static>),
    /// None: it is made for the message, which is then handed on.
    ReceiveAllocated {
        max_bytes: usize,
        handler: BytesHandler,
    },
    /// For a message that a probe took out of matching.
    ReceiveMatched(Arc<MatchedMessage>, Dst<'static>),
    /// Of a send and a receive at the same time; the message is the receive.
    SendRecv(SendRecv),
}

impl MessageBuffer {
    /// The bytes to send, if it is for a send.
    fn outgoing(&self) -> Option<Src<'static>> {
        match self {
            Self::Send(bytes) => Some(*bytes),
            Self::SendRecv(exchange) => Some(exchange.send_bytes),
            Self::Receive(_) | Self::ReceiveAllocated { .. } | Self::ReceiveMatched(..) => None,
        }
    }
}

impl IssuedMessage {
    pub(super) fn into_record(self) -> OperationRecord {
        self.record
    }
}

impl Group {
    /// Checks a send to one rank.
    ///
    /// # Errors
    /// `InvalidArgument`, and `Unsupported` where the back end has no messages.
    pub fn send(
        self: &Arc<Self>,
        bytes: Src<'static>,
        dtype: DataType,
        peer: Rank,
        tag: u32,
        options: CallOptions,
    ) -> Result<PreparedCall> {
        let count = dtype.elements_in(bytes.len());
        let (peer, tag, label) = (Some(peer), Some(tag), options.label);
        let message = MessageDescriptor { is_outgoing: true, peer, tag, dtype, count, label };
        self.prepare_message(message, MessageBuffer::Send(bytes), options)
    }

    /// Checks a receive from one rank, or from any, under one tag, or any.
    ///
    /// # Errors
    /// As [`Group::send`].
    pub fn receive(
        self: &Arc<Self>,
        into: Dst<'static>,
        dtype: DataType,
        peer: Option<Rank>,
        tag: Option<u32>,
        options: CallOptions,
    ) -> Result<PreparedCall> {
        let count = dtype.elements_in(into.len());
        let label = options.label;
        let message = MessageDescriptor { is_outgoing: false, peer, tag, dtype, count, label };
        self.prepare_message(message, MessageBuffer::Receive(into), options)
    }

    /// Checks a receive of a message of bytes, of whatever length up to `max_bytes`; `handler` is
    /// called with it.
    ///
    /// # Errors
    /// As [`Group::send`].
    pub fn receive_bytes(
        self: &Arc<Self>,
        max_bytes: usize,
        handler: BytesHandler,
        peer: Option<Rank>,
        tag: Option<u32>,
        options: CallOptions,
    ) -> Result<PreparedCall> {
        let (dtype, count, label) = (DataType::U8, max_bytes, options.label);
        let message = MessageDescriptor { is_outgoing: false, peer, tag, dtype, count, label };
        self.prepare_message(
            message,
            MessageBuffer::ReceiveAllocated { max_bytes, handler },
            options,
        )
    }

    /// Sends a message without a work, for a call that blocks; false where that takes more than
    /// this moment, or somebody looks closely. Nothing has been done then, and [`Group::send`] says
    /// what is wrong, if anything is.
    pub fn try_send_now(
        &self,
        bytes: Src<'static>,
        dtype: DataType,
        peer: Rank,
        tag: u32,
        options: &CallOptions,
    ) -> bool {
        // Whether a receive has matched the message is known later only.
        if options.synchronous {
            return false;
        }
        let (peer, tag) = (Some(peer), Some(tag));
        let Some(engine) = self.fast_path_engine(peer, tag, options) else { return false };
        let is_sent = engine.try_send_immediate(&ImmediateMessage { peer, tag, dtype, bytes });
        if is_sent {
            // Only now, when it is on its way.
            let count = dtype.elements_in(bytes.len());
            let label = options.label;
            let message = MessageDescriptor { is_outgoing: true, peer, tag, dtype, count, label };
            self.record_issue(&message, recorder::recorder_now_ns())
                .record
                .end_without_clock(&Ok(()));
        }
        is_sent
    }

    /// Receives a message without a work, for a call that blocks, where that takes a moment at
    /// most, as [`Group::try_send_now`].
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
        let count = dtype.elements_in(into.len());
        let label = options.label;
        let message = MessageDescriptor { is_outgoing: false, peer, tag, dtype, count, label };
        // Before the message is here, so that its receiver need not do it then.
        let issued_message = self.record_issue(&message, recorder::recorder_now_ns());
        match engine.try_receive_immediate(&ImmediateMessage { peer, tag, dtype, bytes: into }) {
            Some(delivery) => {
                issued_message.record.end_without_clock(&Ok(()));
                ImmediateReceive::Received(delivery)
            }
            None => ImmediateReceive::NotReceived(Some(issued_message)),
        }
    }

    /// The engine, where a message may go without a work.
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

    /// Gives a message its number, and notes it.
    fn record_issue(&self, message: &MessageDescriptor, issued_ns: u64) -> IssuedMessage {
        let sequence = self.messages_issued.fetch_add(1, Ordering::Relaxed) + 1;
        IssuedMessage { sequence, record: self.record_message(message, sequence, issued_ns) }
    }

    fn prepare_message(
        self: &Arc<Self>,
        message: MessageDescriptor,
        memory: MessageBuffer,
        options: CallOptions,
    ) -> Result<PreparedCall> {
        self.check_message(message.peer, message.tag, &options).context(|| message)?;
        let gpu = match self.device.is_some() || options.is_for_device() {
            true => self.locate_message(&message, &memory, &options).context(|| message)?,
            false => None,
        };
        if let Some(gpu) = gpu.filter(|_| options.synchronous) {
            let text = format!(
                "the buffer is in memory of device {}, and DIST_CALL_SYNCHRONOUS is for host memory",
                gpu.device
            );
            return Err(Error::new(ErrorKind::Unsupported, text)).context(|| message);
        }
        let work = Work::new(WorkKind::Message(message), Arc::clone(&self.queue));
        Ok(PreparedCall::message(Arc::clone(self), (memory, gpu), options, work))
    }

    /// The engine, for a message that may go.
    pub(super) fn check_message(
        &self,
        peer: Option<Rank>,
        tag: Option<u32>,
        options: &CallOptions,
    ) -> Result<&dyn PointToPoint> {
        let is_member = peer.is_none_or(|peer| peer < self.size());
        let is_tag = tag.is_none_or(|tag| tag <= LARGEST_TAG);
        if !is_member || !is_tag || options.algorithm.is_some() {
            return Err(self.invalid_message_error(
                peer.filter(|_| !is_member),
                tag.filter(|_| !is_tag),
                options,
            ));
        }
        self.messaging_engine()
    }

    /// What is wrong with a message: its peer, its tag, or that it names an algorithm.
    #[cold]
    fn invalid_message_error(
        &self,
        peer: Option<Rank>,
        tag: Option<u32>,
        options: &CallOptions,
    ) -> Error {
        Error::invalid(match (peer, tag) {
            (Some(peer), _) => format!("rank {peer} does not exist in a group of {}", self.size()),
            (None, Some(tag)) => format!("tag {tag}: 0 to {LARGEST_TAG} is possible"),
            (None, None) => {
                let name = options.algorithm.as_deref().unwrap_or_default();
                format!("algorithm \"{name}\": a message between two ranks has none")
            }
        })
    }

    pub(super) fn messaging_engine(&self) -> Result<&dyn PointToPoint> {
        self.backend.point_to_point().ok_or_else(|| self.no_messages_error())
    }

    #[cold]
    fn no_messages_error(&self) -> Error {
        let message = format!(
            "the back end {} has no messages between two ranks for this group of {}",
            self.backend_name(),
            self.size()
        );
        Error::new(ErrorKind::Unsupported, message)
    }

    /// Notes the send of an exchange, whose receive has a number of its own.
    fn record_sendrecv_send(
        &self,
        message: &MessageDescriptor,
        deadline: &Deadline,
    ) -> IssuedMessage {
        self.record_issue(message, recorder::recorder_ns(deadline.started()))
    }

    /// What carries messages on the device, and the stream that they are put into.
    fn device_carrier(&self, gpu: GpuTarget) -> Result<(&dyn DevicePointToPoint, Option<usize>)> {
        let missing_carrier = || Error::internal("nobody carries messages on the device");
        Ok((self.backend.device_point_to_point().ok_or_else(missing_carrier)?, gpu.stream))
    }

    /// Hands a message to the engine, or to what carries those on the device, which ends its work.
    pub(super) fn post_message(
        self: &Arc<Self>,
        (memory, gpu): (MessageBuffer, Option<GpuTarget>),
        deadline: Deadline,
        (work, noted): (&Arc<Work>, Option<IssuedMessage>),
        options: &CallOptions,
    ) -> Result<()> {
        let WorkKind::Message(message) = work.kind() else {
            return Err(Error::internal("a work that is no message was posted as one"));
        };
        let engine = self.messaging_engine()?;
        let carrier = gpu.map(|gpu| self.device_carrier(gpu)).transpose()?;
        if let (Some(bytes), None) = (memory.outgoing(), gpu) {
            let nan_check = options.nan_check.max(debug::nan_check());
            let title = |_| format!("{message}: the message");
            self.check_for_nan(message.dtype, nan_check, [bytes].into_iter(), title)?;
        }
        if let Err(error) = self.queue.begin_work() {
            noted.into_iter().for_each(|noted| noted.record.end(&Err(error.clone())));
            return Err(error);
        }
        let issued_message = noted.unwrap_or_else(|| {
            self.record_issue(&message, recorder::recorder_ns(deadline.started()))
        });
        let IssuedMessage { sequence, record } = issued_message;
        work.keep_until_done(PendingMessage { group: Arc::clone(self), record });
        work.mark_issued(sequence, deadline);
        let MessageDescriptor { peer, tag, dtype, .. } = message;
        let done = Arc::clone(work);
        let posted = match (memory, peer, tag) {
            (MessageBuffer::Send(bytes), Some(to), Some(tag)) => {
                let synchronous = options.synchronous;
                let message =
                    SendRequest { to, tag, dtype, bytes, deadline, is_synchronous: synchronous };
                match carrier {
                    Some((carried, stream)) => carried.send(message, stream, done),
                    None => engine.send(message, done),
                }
            }
            (MessageBuffer::Receive(into), from, tag) => {
                let into = ReceiveBuffer::Borrowed(into);
                let message = ReceiveRequest { from, tag, dtype, buffer: into, deadline };
                match carrier {
                    Some((carried, stream)) => carried.receive(message, stream, done),
                    None => engine.receive(message, done),
                }
            }
            (MessageBuffer::ReceiveAllocated { max_bytes: most, handler: deliver }, from, tag) => {
                let into = ReceiveBuffer::Allocated { max_bytes: most };
                let message = ReceiveRequest { from, tag, dtype, buffer: into, deadline };
                engine.receive(message, Arc::new(BytesReceiveCompletion::new(done, deliver)))
            }
            (MessageBuffer::ReceiveMatched(matched, into), ..) => {
                matched.post_receive(engine, (into, dtype), deadline, done)
            }
            (MessageBuffer::SendRecv(exchange), ..) => {
                let issued_send =
                    self.record_sendrecv_send(&exchange.outgoing(dtype, options.label), &deadline);
                exchange.post(
                    engine,
                    &message,
                    (deadline, options.synchronous),
                    (work, issued_send),
                )
            }
            (MessageBuffer::Send(_), ..) => Err(Error::internal("a send without a rank or a tag")),
        };
        posted.map_err(|error| {
            let error = work.with_message_context(error);
            self.write_error_file(&error);
            work.end(Err(error.clone()));
            error
        })
    }
}
