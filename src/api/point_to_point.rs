//! Messages between two ranks: what is checked before the engine sees one, and what its work says
//! about it.
//!
//! Messages never wait behind collectives: they go to the back end's engine at once, which matches,
//! carries and completes them.

use super::bytes::{Deliver, Taker};
use super::call::CallOptions;
use super::exchange::Exchange;
use super::group::Group;
use super::issue::Prepared;
use super::probe::MatchedMessage;
use super::recorder::{self, Record};
use super::work::{Held, Work, WorkKind};
use crate::backend::Carried;
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::Deadline;
use crate::base::debug::{self, Values};
use crate::base::dtype::DataType;
use crate::base::error::{Context as _, Error, ErrorKind, Result};
use crate::base::gpu::Gpu;
use crate::base::ids::Rank;
use crate::base::label::{Label, LabelSuffix};
use crate::transport::{Delivery, Incoming, LARGEST_TAG, Outgoing, PointToPoint, Room, Small};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What is said about a message. A receive may leave open from whom and under which tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
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

impl fmt::Display for Message {
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
pub struct Noted {
    sequence: u64,
    record: Record,
}

/// What has become of a receive that was tried without a work.
#[derive(Debug)]
pub enum AtOnce {
    /// The message is here.
    Here(Delivery),
    /// It is not: [`Group::receive`] goes on, which is given what was noted of it
    /// ([`Prepared::with_note`]).
    Not(Option<Noted>),
}

/// The caller's memory, lent until the message's work has ended.
#[derive(Debug)]
pub(super) enum Memory {
    Out(Src<'static>),
    In(Dst<'static>),
    /// None: it is made for the message, which is then handed on.
    Grows {
        most: usize,
        deliver: Deliver,
    },
    /// For a message that a probe took out of matching.
    Matched(Arc<MatchedMessage>, Dst<'static>),
    /// Of a send and a receive at the same time; the message is the receive.
    Exchange(Exchange),
}

impl Memory {
    /// The bytes to send, if it is for a send.
    fn outgoing(&self) -> Option<Src<'static>> {
        match self {
            Self::Out(bytes) => Some(*bytes),
            Self::Exchange(exchange) => Some(exchange.bytes),
            Self::In(_) | Self::Grows { .. } | Self::Matched(..) => None,
        }
    }
}

impl Noted {
    pub(super) fn into_record(self) -> Record {
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
    ) -> Result<Prepared> {
        let count = dtype.elements_in(bytes.len());
        let (peer, tag, label) = (Some(peer), Some(tag), options.label);
        let message = Message { is_outgoing: true, peer, tag, dtype, count, label };
        self.prepare_message(message, Memory::Out(bytes), options)
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
    ) -> Result<Prepared> {
        let count = dtype.elements_in(into.len());
        let label = options.label;
        let message = Message { is_outgoing: false, peer, tag, dtype, count, label };
        self.prepare_message(message, Memory::In(into), options)
    }

    /// Checks a receive of a message of bytes, of whatever length up to `most`; `deliver` is called
    /// with it.
    ///
    /// # Errors
    /// As [`Group::send`].
    pub fn receive_bytes(
        self: &Arc<Self>,
        most: usize,
        deliver: Deliver,
        peer: Option<Rank>,
        tag: Option<u32>,
        options: CallOptions,
    ) -> Result<Prepared> {
        let (dtype, count, label) = (DataType::U8, most, options.label);
        let message = Message { is_outgoing: false, peer, tag, dtype, count, label };
        self.prepare_message(message, Memory::Grows { most, deliver }, options)
    }

    /// Sends a message without a work, for a call that blocks; false where that takes more than
    /// this moment, or somebody looks closely. Nothing has been done then, and [`Group::send`] says
    /// what is wrong, if anything is.
    pub fn send_at_once(
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
        let Some(engine) = self.prompt_engine(peer, tag, options) else { return false };
        let was_sent = engine.send_at_once(&Small { peer, tag, dtype, bytes });
        if was_sent {
            // Only now, when it is on its way.
            let count = dtype.elements_in(bytes.len());
            let label = options.label;
            let message = Message { is_outgoing: true, peer, tag, dtype, count, label };
            self.note_message(&message, recorder::now_ns()).record.end_at_once(&Ok(()));
        }
        was_sent
    }

    /// Receives a message without a work, for a call that blocks, where that takes a moment at
    /// most, as [`Group::send_at_once`].
    pub fn receive_at_once(
        &self,
        into: Dst<'static>,
        dtype: DataType,
        peer: Option<Rank>,
        tag: Option<u32>,
        options: &CallOptions,
    ) -> AtOnce {
        let Some(engine) = self.prompt_engine(peer, tag, options) else {
            return AtOnce::Not(None);
        };
        let count = dtype.elements_in(into.len());
        let label = options.label;
        let message = Message { is_outgoing: false, peer, tag, dtype, count, label };
        // Before the message is here, so that its receiver need not do it then.
        let noted = self.note_message(&message, recorder::now_ns());
        match engine.receive_at_once(&Small { peer, tag, dtype, bytes: into }) {
            Some(delivery) => {
                noted.record.end_at_once(&Ok(()));
                AtOnce::Here(delivery)
            }
            None => AtOnce::Not(Some(noted)),
        }
    }

    /// The engine, where a message may go without a work.
    fn prompt_engine(
        &self,
        peer: Option<Rank>,
        tag: Option<u32>,
        options: &CallOptions,
    ) -> Option<&dyn PointToPoint> {
        let is_watched = debug::looks() || options.values != Values::Any;
        let may_be_on_device = self.device.is_some() || options.is_placed();
        if is_watched || may_be_on_device {
            return None;
        }
        self.check_message(peer, tag, options).ok()
    }

    /// Gives a message its number, and notes it.
    fn note_message(&self, message: &Message, issued_ns: u64) -> Noted {
        let sequence = self.messages_issued.fetch_add(1, Ordering::Relaxed) + 1;
        Noted { sequence, record: self.record_message(message, sequence, issued_ns) }
    }

    fn prepare_message(
        self: &Arc<Self>,
        message: Message,
        memory: Memory,
        options: CallOptions,
    ) -> Result<Prepared> {
        self.check_message(message.peer, message.tag, &options).context(|| message)?;
        let gpu = match self.device.is_some() || options.is_placed() {
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
        Ok(Prepared::message(Arc::clone(self), (memory, gpu), options, work))
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
            return Err(self.refuse_message(
                peer.filter(|_| !is_member),
                tag.filter(|_| !is_tag),
                options,
            ));
        }
        self.engine()
    }

    /// What is wrong with a message: its peer, its tag, or that it names an algorithm.
    #[cold]
    fn refuse_message(&self, peer: Option<Rank>, tag: Option<u32>, options: &CallOptions) -> Error {
        Error::invalid(match (peer, tag) {
            (Some(peer), _) => format!("rank {peer} does not exist in a group of {}", self.size()),
            (None, Some(tag)) => format!("tag {tag}: 0 to {LARGEST_TAG} is possible"),
            (None, None) => {
                let name = options.algorithm.as_deref().unwrap_or_default();
                format!("algorithm \"{name}\": a message between two ranks has none")
            }
        })
    }

    pub(super) fn engine(&self) -> Result<&dyn PointToPoint> {
        self.backend.messages().ok_or_else(|| self.lacks_messages())
    }

    #[cold]
    fn lacks_messages(&self) -> Error {
        let message = format!(
            "the back end {} has no messages between two ranks for this group of {}",
            self.backend_name(),
            self.size()
        );
        Error::new(ErrorKind::Unsupported, message)
    }

    /// Notes the send of an exchange, whose receive has a number of its own.
    fn note_sent(&self, message: &Message, deadline: &Deadline) -> Noted {
        self.note_message(message, recorder::at_ns(deadline.started()))
    }

    /// What carries messages on the device, and the stream that they are put into.
    fn carrier(&self, gpu: Gpu) -> Result<(&dyn Carried, Option<usize>)> {
        let none = || Error::internal("nobody carries messages on the device");
        Ok((self.backend.carried().ok_or_else(none)?, gpu.stream))
    }

    /// Hands a message to the engine, or to what carries those on the device, which ends its work.
    pub(super) fn post(
        self: &Arc<Self>,
        (memory, gpu): (Memory, Option<Gpu>),
        deadline: Deadline,
        (work, noted): (&Arc<Work>, Option<Noted>),
        options: &CallOptions,
    ) -> Result<()> {
        let WorkKind::Message(message) = work.kind() else {
            return Err(Error::internal("a work that is no message was posted as one"));
        };
        let engine = self.engine()?;
        let carried = gpu.map(|gpu| self.carrier(gpu)).transpose()?;
        if let (Some(bytes), None) = (memory.outgoing(), gpu) {
            let values = options.values.max(debug::values());
            let title = |_| format!("{message}: the message");
            self.inspect(message.dtype, values, [bytes].into_iter(), title)?;
        }
        if let Err(error) = self.queue.work_begins() {
            noted.into_iter().for_each(|noted| noted.record.end(&Err(error.clone())));
            return Err(error);
        }
        let noted = noted
            .unwrap_or_else(|| self.note_message(&message, recorder::at_ns(deadline.started())));
        let Noted { sequence, record } = noted;
        work.hold(Held { group: Arc::clone(self), record });
        work.issued(sequence, deadline);
        let Message { peer, tag, dtype, .. } = message;
        let done = Arc::clone(work);
        let posted = match (memory, peer, tag) {
            (Memory::Out(bytes), Some(to), Some(tag)) => {
                let synchronous = options.synchronous;
                let message = Outgoing { to, tag, dtype, bytes, deadline, synchronous };
                match carried {
                    Some((carried, stream)) => carried.send(message, stream, done),
                    None => engine.send(message, done),
                }
            }
            (Memory::In(into), from, tag) => {
                let into = Room::Lent(into);
                let message = Incoming { from, tag, dtype, into, deadline };
                match carried {
                    Some((carried, stream)) => carried.receive(message, stream, done),
                    None => engine.receive(message, done),
                }
            }
            (Memory::Grows { most, deliver }, from, tag) => {
                let into = Room::Grows { most };
                let message = Incoming { from, tag, dtype, into, deadline };
                engine.receive(message, Arc::new(Taker::new(done, deliver)))
            }
            (Memory::Matched(matched, into), ..) => {
                matched.post(engine, (into, dtype), deadline, done)
            }
            (Memory::Exchange(exchange), ..) => {
                let noted = self.note_sent(&exchange.outgoing(dtype, options.label), &deadline);
                exchange.post(engine, &message, (deadline, options.synchronous), (work, noted))
            }
            (Memory::Out(_), ..) => Err(Error::internal("a send without a rank or a tag")),
        };
        posted.map_err(|error| {
            let error = work.explain(error);
            self.note(&error);
            work.end(Err(error.clone()));
            error
        })
    }
}
