//! What lies between this rank and one other: the streams to it and from it, and what is on its way
//! in them.

use super::frame::{ExposedBuffer, HEADER_BYTES, MessageFrame};
use super::peer_streams::PeerStreams;
use super::unexpected::UnexpectedMessage;
use crate::base::error::Error;
use crate::transport::{PeerName, SharedDomain};
use std::collections::{HashMap, VecDeque};
use std::time::Instant;

/// Something to be put into the stream.
#[derive(Debug)]
pub(super) enum QueuedItem {
    /// The whole message of a send.
    Eager(u64),
    /// The offer of a send.
    Rts(u64),
    /// Something that is said.
    Control(MessageFrame),
    /// That a receive has taken the offer of this number.
    Fin { number: u64, receive: u64 },
}

/// What is being put into the stream.
#[derive(Debug)]
pub(super) struct FrameInProgress {
    pub(super) header: [u8; HEADER_BYTES],
    pub(super) body: FrameBody,
    /// How many bytes of head and body are in the stream.
    pub(super) written: usize,
}

impl FrameInProgress {
    /// Whether it is the lane that what is left goes into.
    pub(super) fn waits_for_bulk_ring(&self) -> bool {
        self.written >= self.header.len() && self.body.is_bulk()
    }
}

/// What follows a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameBody {
    /// Nothing; of a send that is offered here, its number.
    Empty(Option<u64>),
    /// Nothing; the receive that ends with it.
    Fin(u64),
    /// A whole message.
    Eager { number: u64, is_bulk: bool },
    /// A piece of one.
    Fragment { number: u64, attempt: u32, offset: usize, len: usize, is_bulk: bool },
}

impl FrameBody {
    /// Whether it goes into the lane.
    pub(super) fn is_bulk(&self) -> bool {
        matches!(self, Self::Eager { is_bulk: true, .. } | Self::Fragment { is_bulk: true, .. })
    }

    /// The send that it belongs to.
    pub(super) fn send_number(&self) -> Option<u64> {
        match *self {
            Self::Empty(number) => number,
            Self::Fin(_) => None,
            Self::Eager { number, .. } | Self::Fragment { number, .. } => Some(number),
        }
    }
}

/// What is being taken from the stream.
#[derive(Debug)]
pub(super) enum InboundFrame {
    Header { bytes: [u8; HEADER_BYTES], received: usize },
    Body { destination: BodyDestination, received: usize, len: usize, is_bulk: bool },
}

impl InboundFrame {
    pub(super) const AWAITING_HEADER: Self = Self::Header { bytes: [0; HEADER_BYTES], received: 0 };
}

/// Where bytes that come go.
#[derive(Debug)]
pub(super) enum BodyDestination {
    /// Into a message that nobody waits for yet.
    Unexpected(UnexpectedMessage),
    /// Into the buffer of a receive.
    Receive(u64),
    /// Into the buffer of the receive that has taken an offer.
    Fragment(u64),
    /// Nowhere: a piece that was asked for in vain.
    Discard,
}

/// What a peer has offered.
#[derive(Debug)]
pub(super) struct ReceivedRts {
    pub(super) arrival: u64,
    pub(super) tag: u32,
    pub(super) dtype: crate::base::dtype::DataType,
    pub(super) len: usize,
    pub(super) exposed: Option<ExposedBuffer>,
    /// Its sender waits until it is taken.
    pub(super) is_awaited: bool,
    /// How often it has been pulled.
    pub(super) attempt: u32,
    /// The receive that has taken it.
    pub(super) receive: Option<u64>,
    /// How much of it has come.
    pub(super) received: usize,
    /// Who copies its back, where it is read.
    pub(super) back_half: BackHalf,
}

/// Who copies the back of a message that is read where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BackHalf {
    /// Its receiver reads all of it.
    GetAll,
    /// Its sender has been asked to write the back.
    PutRequested,
    /// It has written so much of that, and does no more.
    PutDone(usize),
}

/// Whether the peer's memory can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CmaAccess {
    Untested,
    Allowed,
    Denied,
}

/// One other rank, or this one.
#[derive(Debug)]
pub(super) struct PeerLink {
    pub(super) name: PeerName,
    pub(super) streams: PeerStreams,
    /// Why nothing goes to it or comes from it any more.
    pub(super) close_error: Option<Error>,
    /// Why nothing goes to it any more, and why nothing comes, until both ends.
    pub(super) send_close_error: Option<Error>,
    pub(super) receive_close_error: Option<Error>,
    /// Until when a reason for that may come.
    pub(super) departure_deadline: Option<Instant>,
    pub(super) send_queue: VecDeque<QueuedItem>,
    /// Sends that have been pulled, in turns.
    pub(super) fragment_queue: VecDeque<u64>,
    pub(super) current_frame: Option<FrameInProgress>,
    /// On the list of those that have something to send.
    pub(super) is_pending: bool,
    /// The stream was full, and nothing has been heard since.
    pub(super) is_stream_full: bool,
    /// What the peer holds of what it holds for this rank.
    pub(super) used_credit: usize,
    pub(super) inbound_frame: InboundFrame,
    pub(super) received_rts: HashMap<u64, ReceivedRts>,
    pub(super) last_rts: u64,
    /// What is held for the peer, and what it has not been told that is not held any more.
    pub(super) held_cost: usize,
    pub(super) owed_credit: usize,
    pub(super) cma_access: CmaAccess,
}

impl PeerLink {
    pub(super) fn new(name: PeerName, streams: PeerStreams) -> Self {
        Self {
            name,
            streams,
            close_error: None,
            send_close_error: None,
            receive_close_error: None,
            departure_deadline: None,
            send_queue: VecDeque::new(),
            fragment_queue: VecDeque::new(),
            current_frame: None,
            is_pending: false,
            is_stream_full: false,
            used_credit: 0,
            inbound_frame: InboundFrame::AWAITING_HEADER,
            received_rts: HashMap::new(),
            last_rts: 0,
            held_cost: 0,
            owed_credit: 0,
            cma_access: CmaAccess::Untested,
        }
    }

    /// Nothing waits to be put into the stream.
    pub(super) fn is_idle(&self) -> bool {
        self.current_frame.is_none() && self.send_queue.is_empty() && self.fragment_queue.is_empty()
    }

    /// Forgets what was to be put into the stream for a send, if none of it is there; true if so.
    pub(super) fn dequeue_send(&mut self, number: u64) -> bool {
        let is_its = |item: &QueuedItem| matches!(item, QueuedItem::Eager(n) | QueuedItem::Rts(n) if *n == number);
        if let Some(position) = self.send_queue.iter().position(is_its) {
            self.send_queue.remove(position);
            return true;
        }
        match &self.current_frame {
            Some(current) if current.body.send_number() == Some(number) && current.written == 0 => {
                self.current_frame = None;
                true
            }
            _ => false,
        }
    }

    /// Whether the lane of this rank serves the peer.
    pub(super) fn uses_bulk_ring(&mut self, domain: &dyn SharedDomain) -> bool {
        let is_under_way =
            self.current_frame.as_ref().is_some_and(|current| current.body.is_bulk());
        self.close_error.is_none() && (is_under_way || !self.streams.is_bulk_ring_drained(domain))
    }

    /// Whether bytes of a send are being put into the stream.
    pub(super) fn is_sending(&self, number: u64) -> bool {
        self.current_frame.as_ref().is_some_and(|current| {
            current.written > 0
                && !matches!(current.body, FrameBody::Empty(_))
                && current.body.send_number() == Some(number)
        })
    }

    /// Whether anything goes to the peer.
    pub(super) fn is_open(&self) -> bool {
        self.close_error.is_none() && self.send_close_error.is_none()
    }

    /// Why a send to the peer ends at once. While the link parts, it ends with that.
    pub(super) fn send_refusal(&self) -> Option<&Error> {
        let out_closed =
            self.send_close_error.as_ref().filter(|_| self.departure_deadline.is_none());
        self.close_error.as_ref().or(out_closed)
    }

    /// Ends everything that goes to the peer.
    pub(super) fn clear_outbound(&mut self) {
        self.send_queue.clear();
        self.fragment_queue.clear();
        self.current_frame = None;
    }

    /// Ends everything that goes to the peer or comes from it.
    pub(super) fn clear(&mut self) {
        self.clear_outbound();
        self.inbound_frame = InboundFrame::AWAITING_HEADER;
        self.received_rts.clear();
    }
}
