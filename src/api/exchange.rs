//! A send and a receive at the same time, with one work (`dist_sendrecv`).
//!
//! The receive is posted before the send, so that no cycle of ranks waits. The work is that of the
//! receive. It ends when both have ended, with the error of the receive, else that of the send.
//!
//! If the message that arrives goes to memory of the message that is sent, the engine makes memory
//! for the former. Its bytes are moved to the caller's buffer once the send has ended.

use super::call::CallOptions;
use super::group::Group;
use super::issue::Prepared;
use super::point_to_point::{Memory, Message, Noted};
use super::recorder::Record;
use super::work::{Work, WorkKind};
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::{Context as _, Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::base::label::Label;
use crate::kernel;
use crate::transport::{Completion, Delivery, Incoming, Outgoing, PointToPoint, Room};
use std::sync::{Arc, Mutex, PoisonError};

/// The memory of both messages, and where the outgoing one goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exchange {
    pub(super) bytes: Src<'static>,
    pub(super) into: Dst<'static>,
    to: Rank,
    tag: u32,
}

impl Exchange {
    /// Whether the incoming message would overwrite the outgoing one.
    pub(super) fn overlaps(&self) -> bool {
        let (send, recv) = (self.bytes.as_ptr().addr(), self.into.as_src().as_ptr().addr());
        send < recv + self.into.len() && recv < send + self.bytes.len()
    }

    /// The outgoing message, as the recorder knows it.
    pub(super) fn outgoing(&self, dtype: DataType, label: Label) -> Message {
        let count = dtype.elements_in(self.bytes.len());
        Message { is_outgoing: true, peer: Some(self.to), tag: Some(self.tag), dtype, count, label }
    }

    /// Hands both messages to the engine. `incoming` is what the work is about.
    pub(super) fn post(
        &self,
        engine: &dyn PointToPoint,
        incoming: &Message,
        (deadline, synchronous): (Deadline, bool),
        (work, noted): (&Arc<Work>, Noted),
    ) -> Result<()> {
        let (dtype, to, tag, bytes) = (incoming.dtype, self.to, self.tag, self.bytes);
        let most = self.into.len();
        let into = if self.overlaps() { Room::Grows { most } } else { Room::Lent(self.into) };
        let (from, tag_wanted) = (incoming.peer, incoming.tag);
        let receive = Incoming { from, tag: tag_wanted, dtype, into, deadline };
        let send = Outgoing { to, tag, dtype, bytes, deadline, synchronous };
        let shared = Arc::new(Shared {
            work: Arc::clone(work),
            exchange: *self,
            ends: Mutex::new(Ends {
                received: None,
                sent: None,
                record: Some(noted.into_record()),
            }),
        });
        let received = Arc::new(ReceiveEnd(Arc::clone(&shared)));
        engine
            .exchange((receive, received), (send, Arc::new(SendEnd(Arc::clone(&shared)))))
            .inspect_err(|error| shared.end_record(&Err(error.clone())))
    }
}

/// What both ends share.
#[derive(Debug)]
struct Shared {
    work: Arc<Work>,
    exchange: Exchange,
    ends: Mutex<Ends>,
}

/// How the two messages have ended.
#[derive(Debug)]
struct Ends {
    received: Option<(Result<Delivery>, Option<Vec<u8>>)>,
    sent: Option<Result<()>>,
    /// The recorder's entry of the send.
    record: Option<Record>,
}

#[derive(Debug)]
struct ReceiveEnd(Arc<Shared>);

#[derive(Debug)]
struct SendEnd(Arc<Shared>);

impl Shared {
    /// Notes the end of a message; ends the work if the other one has ended too.
    fn note(&self, note: impl FnOnce(&mut Ends)) {
        let both = {
            let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
            note(&mut ends);
            match (&ends.received, &ends.sent) {
                (Some(_), Some(_)) => ends.received.take().zip(ends.sent.take()),
                _ => None,
            }
        };
        let Some(((received, grown), sent)) = both else { return };
        let outcome = received.and_then(|delivery| sent.map(|()| delivery));
        if let (Ok(delivery), Some(bytes)) = (&outcome, grown) {
            let into = self.exchange.into.slice(0, delivery.bytes);
            kernel::copy(into, Src::from(bytes.as_slice()));
        }
        self.work.complete(outcome);
    }

    fn end_record(&self, outcome: &Result<()>) {
        let record = self.ends.lock().unwrap_or_else(PoisonError::into_inner).record.take();
        record.into_iter().for_each(|record| record.end(outcome));
    }
}

impl Completion for ReceiveEnd {
    fn complete(&self, outcome: Result<Delivery>) {
        self.0.note(|ends| ends.received = Some((outcome, None)));
    }

    fn is_awaited(&self) -> bool {
        self.0.work.is_awaited()
    }

    fn complete_grown(&self, delivery: Delivery, bytes: Vec<u8>) {
        self.0.note(|ends| ends.received = Some((Ok(delivery), Some(bytes))));
    }
}

impl Completion for SendEnd {
    fn complete(&self, outcome: Result<Delivery>) {
        let Exchange { to, tag, .. } = self.0.exchange;
        let outcome = outcome.map(drop).context(|| format!("the send to rank {to}, tag {tag}"));
        self.0.end_record(&outcome);
        self.0.note(|ends| ends.sent = Some(outcome));
    }

    fn is_awaited(&self) -> bool {
        self.0.work.is_awaited()
    }
}

/// One side of an exchange.
#[derive(Clone, Copy, Debug)]
pub struct Side<Bytes, Peer, Tag> {
    /// The memory of the message.
    pub bytes: Bytes,
    /// The other rank.
    pub peer: Peer,
    /// The tag.
    pub tag: Tag,
}

impl Group {
    /// Checks the sending of one message and the receiving of another at the same time.
    ///
    /// # Errors
    /// As [`Group::send`]; `Unsupported` for buffers in a device's memory.
    pub fn exchange(
        self: &Arc<Self>,
        send: Side<Src<'static>, Rank, u32>,
        receive: Side<Dst<'static>, Option<Rank>, Option<u32>>,
        dtype: DataType,
        options: CallOptions,
    ) -> Result<Prepared> {
        let exchange =
            Exchange { bytes: send.bytes, into: receive.bytes, to: send.peer, tag: send.tag };
        let outgoing = exchange.outgoing(dtype, options.label);
        self.check_message(outgoing.peer, outgoing.tag, &options).context(|| outgoing)?;
        let (peer, tag, count) =
            (receive.peer, receive.tag, dtype.elements_in(receive.bytes.len()));
        let label = options.label;
        let incoming = Message { is_outgoing: false, peer, tag, dtype, count, label };
        self.check_message(peer, tag, &options).context(|| incoming)?;
        self.refuse_device(&outgoing, &Memory::Out(send.bytes), &options).context(|| outgoing)?;
        let memory = Memory::Exchange(exchange);
        self.refuse_device(&incoming, &memory, &options).context(|| incoming)?;
        let work = Work::new(WorkKind::Message(incoming), Arc::clone(&self.queue));
        Ok(Prepared::message(Arc::clone(self), (memory, None), options, work))
    }

    /// Refuses a buffer in a device's memory.
    pub(super) fn refuse_device(
        &self,
        message: &Message,
        memory: &Memory,
        options: &CallOptions,
    ) -> Result<()> {
        if self.device.is_none() && !options.is_placed() {
            return Ok(());
        }
        match self.locate_message(message, memory, options)? {
            None => Ok(()),
            Some(gpu) => {
                let text = format!(
                    "the buffer is in memory of device {}, and this call is for host memory: use dist_send and \
                     dist_recv, in a batch if both go on at the same time",
                    gpu.device
                );
                Err(Error::new(ErrorKind::Unsupported, text))
            }
        }
    }
}
