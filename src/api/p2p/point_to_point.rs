//! Messages between two ranks: the checks before a message is posted, the post itself, and the
//! recorder entries.
//!
//! Messages never wait behind collectives: they go directly to the messaging engine of the back
//! end, which matches, transfers and completes them. A blocking call first tries to send or receive
//! without a work ([`Group::try_send_now`], [`Group::try_receive_now`]).

use crate::api::collective::bytes::{BytesHandler, BytesReceiveCompletion};
use crate::api::collective::call::CallOptions;
use crate::api::group::process_group::Group;
use crate::api::observe::recorder;
use crate::api::observe::recorder::OperationRecord;
use crate::api::p2p::probe::MatchedMessage;
use crate::api::p2p::sendrecv::SendRecv;
use crate::api::work::handle::{PendingMessage, Work, WorkKind};
use crate::api::work::issue::PreparedCall;
use crate::backend::{DeviceBackend, DevicePointToPoint};
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

/// The description of a message for its work, for logs and for errors. A receive may leave peer and
/// tag open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageDescriptor {
    /// True if this rank sends the message.
    pub is_outgoing: bool,
    /// The other rank; `None` for a receive from any rank.
    pub peer: Option<Rank>,
    /// The tag; `None` for a receive with any tag.
    pub tag: Option<u32>,
    /// The data type of the elements.
    pub dtype: DataType,
    /// The number of elements to send, or the maximum to receive; `usize::MAX` if unlimited.
    pub count: usize,
    /// The label of the call, for the reports of this rank. Matching ignores it.
    pub label: Label,
}

impl fmt::Display for MessageDescriptor {
    /// Formats the message, for instance `send "grad" to rank 3, tag 7 (f32, count 10)`.
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

/// The number and the recorder entry of a message that was issued.
#[derive(Debug)]
pub struct IssuedMessage {
    sequence: u64,
    record: OperationRecord,
}

/// The result of an attempt to receive without a work.
#[derive(Debug)]
pub enum ImmediateReceive {
    /// The message was received.
    Received(Delivery),
    /// No message was available. The caller continues with [`Group::receive`] and passes the
    /// recorded issue on ([`PreparedCall::with_issued_message`]).
    NotReceived(Option<IssuedMessage>),
}

/// The caller's buffer. It is in flight until the message's work has ended.
#[derive(Debug)]
pub(in crate::api) enum MessageBuffer {
    Send(Src<'static>),
    Receive(Dst<'static>),
    /// No buffer: the engine allocates one for the message, and the handler receives it.
    ReceiveAllocated {
        max_bytes: usize,
        handler: BytesHandler,
    },
    /// The buffer for a message that a probe has already matched.
    ReceiveMatched(Arc<MatchedMessage>, Dst<'static>),
    /// The buffers of a send and a receive in one call. The work's message is the receive.
    SendRecv(SendRecv),
}

impl MessageBuffer {
    /// Returns the bytes to send, if there are any.
    fn outgoing(&self) -> Option<Src<'static>> {
        match self {
            Self::Send(bytes) => Some(*bytes),
            Self::SendRecv(exchange) => Some(exchange.send_bytes),
            Self::Receive(_) | Self::ReceiveAllocated { .. } | Self::ReceiveMatched(..) => None,
        }
    }
}

impl IssuedMessage {
    pub(in crate::api) fn into_record(self) -> OperationRecord {
        self.record
    }
}

impl Group {
    /// Checks a send to one rank.
    ///
    /// # Errors
    /// `InvalidArgument`, and `Unsupported` if the back end has no messages.
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
        let count = dtype.elements_in(into.len());
        let label = options.label;
        let message = MessageDescriptor { is_outgoing: false, peer, tag, dtype, count, label };
        self.prepare_message(message, MessageBuffer::Receive(into), options)
    }

    /// Checks a receive of a byte message of any length up to `max_bytes`. `handler` is called with
    /// the message.
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
        let (dtype, count, label) = (DataType::U8, max_bytes, options.label);
        let message = MessageDescriptor { is_outgoing: false, peer, tag, dtype, count, label };
        self.prepare_message(
            message,
            MessageBuffer::ReceiveAllocated { max_bytes, handler },
            options,
        )
    }

    /// Tries to send a message without a work, for a blocking call. Returns false if the send
    /// cannot complete immediately, or if a debug check is on. In that case nothing was sent, and
    /// [`Group::send`] reports any invalid argument.
    pub fn try_send_now(
        &self,
        bytes: Src<'static>,
        dtype: DataType,
        peer: Rank,
        tag: u32,
        options: &CallOptions,
    ) -> bool {
        // A synchronous send completes only after a receive has matched it.
        if options.synchronous {
            return false;
        }
        let (peer, tag) = (Some(peer), Some(tag));
        let Some(engine) = self.fast_path_engine(peer, tag, options) else { return false };
        let is_sent = engine.try_send_immediate(&ImmediateMessage { peer, tag, dtype, bytes });
        if is_sent {
            // The record comes after the send, so that it does not delay the message.
            let count = dtype.elements_in(bytes.len());
            let label = options.label;
            let message = MessageDescriptor { is_outgoing: true, peer, tag, dtype, count, label };
            self.record_issue(&message, recorder::recorder_now_ns())
                .record
                .end_without_clock(&Ok(()));
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
        let count = dtype.elements_in(into.len());
        let label = options.label;
        let message = MessageDescriptor { is_outgoing: false, peer, tag, dtype, count, label };
        // The record comes before the message arrives, so that it does not delay the receiver
        // afterwards.
        let issued_message = self.record_issue(&message, recorder::recorder_now_ns());
        match engine.try_receive_immediate(&ImmediateMessage { peer, tag, dtype, bytes: into }) {
            Some(delivery) => {
                issued_message.record.end_without_clock(&Ok(()));
                ImmediateReceive::Received(delivery)
            }
            None => ImmediateReceive::NotReceived(Some(issued_message)),
        }
    }

    /// Returns the engine if a message may be transferred without a work.
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

    /// Assigns a number to a message and records it.
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
                "the buffer is in memory of device {}, but DIST_CALL_SYNCHRONOUS supports host memory only",
                gpu.device
            );
            return Err(Error::new(ErrorKind::Unsupported, text)).context(|| message);
        }
        let work = Work::new(WorkKind::Message(message), Arc::clone(&self.queue));
        Ok(PreparedCall::message(Arc::clone(self), (memory, gpu), options, work))
    }

    /// Checks peer, tag and options of a message and returns the engine.
    pub(in crate::api) fn check_message(
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

    /// Returns the error for an invalid message: its peer, its tag, or that it names an algorithm.
    #[cold]
    fn invalid_message_error(
        &self,
        peer: Option<Rank>,
        tag: Option<u32>,
        options: &CallOptions,
    ) -> Error {
        Error::invalid(match (peer, tag) {
            (Some(peer), _) => format!("rank {peer} does not exist in a group of {}", self.size()),
            (None, Some(tag)) => format!("tag {tag} is out of range: pass 0 to {LARGEST_TAG}"),
            (None, None) => {
                let name = options.algorithm.as_deref().unwrap_or_default();
                format!("algorithm \"{name}\": messages between two ranks have no algorithms")
            }
        })
    }

    pub(in crate::api) fn messaging_engine(&self) -> Result<&dyn PointToPoint> {
        self.backend.point_to_point().ok_or_else(|| self.no_messages_error())
    }

    #[cold]
    fn no_messages_error(&self) -> Error {
        let message = format!(
            "back end {} does not support messages between two ranks in this group of {}",
            self.backend_name(),
            self.size()
        );
        Error::new(ErrorKind::Unsupported, message)
    }

    /// Records the send of a sendrecv. The receive has a number of its own.
    fn record_sendrecv_send(
        &self,
        message: &MessageDescriptor,
        deadline: &Deadline,
    ) -> IssuedMessage {
        self.record_issue(message, recorder::recorder_ns(deadline.started()))
    }

    /// Returns the device messaging engine and the stream of the message.
    fn device_messaging(&self, gpu: GpuTarget) -> Result<(&dyn DevicePointToPoint, Option<usize>)> {
        let missing_engine = || Error::internal("the back end has no device messaging engine");
        let engine = self.backend.device().and_then(DeviceBackend::point_to_point);
        Ok((engine.ok_or_else(missing_engine)?, gpu.stream))
    }

    /// Posts a message to the engine or to the device messaging engine, which ends its work.
    pub(in crate::api) fn post_message(
        self: &Arc<Self>,
        (memory, gpu): (MessageBuffer, Option<GpuTarget>),
        deadline: Deadline,
        (work, issued): (&Arc<Work>, Option<IssuedMessage>),
        options: &CallOptions,
    ) -> Result<()> {
        let WorkKind::Message(message) = work.kind() else {
            return Err(Error::internal("a work that is not a message was posted as a message"));
        };
        let engine = self.messaging_engine()?;
        let device_engine = gpu.map(|gpu| self.device_messaging(gpu)).transpose()?;
        if let (Some(bytes), None) = (memory.outgoing(), gpu) {
            let nan_check = options.nan_check.max(debug::nan_check());
            let title = |_| format!("{message}: the message");
            self.check_for_nan(message.dtype, nan_check, [bytes].into_iter(), title)?;
        }
        if let Err(error) = self.queue.begin_work() {
            issued.into_iter().for_each(|issued| issued.record.end(&Err(error.clone())));
            return Err(error);
        }
        let issued_message = issued.unwrap_or_else(|| {
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
                match device_engine {
                    Some((device_engine, stream)) => device_engine.send(message, stream, done),
                    None => engine.send(message, done),
                }
            }
            (MessageBuffer::Receive(into), from, tag) => {
                let into = ReceiveBuffer::Borrowed(into);
                let message = ReceiveRequest { from, tag, dtype, buffer: into, deadline };
                match device_engine {
                    Some((device_engine, stream)) => device_engine.receive(message, stream, done),
                    None => engine.receive(message, done),
                }
            }
            (MessageBuffer::ReceiveAllocated { max_bytes, handler: deliver }, from, tag) => {
                let into = ReceiveBuffer::Allocated { max_bytes };
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
