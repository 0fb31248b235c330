//! The link between this rank and one peer: the streams in both directions, and the frames in
//! progress on them.

use super::frame::{ExposedBuffer, HEADER_BYTES, MessageFrame};
use super::peer_streams::PeerStreams;
use super::unexpected::UnexpectedMessage;
use crate::base::error::Error;
use crate::transport::{PeerName, SharedDomain};
use std::collections::{HashMap, VecDeque};
use std::time::Instant;

/// An item in the queue of an outgoing stream.
#[derive(Debug)]
pub(super) enum QueuedItem {
    /// The eager message of a send.
    Eager(u64),
    /// The RTS of a send.
    Rts(u64),
    /// A control frame.
    Control(MessageFrame),
    /// The FIN for the announced message `number`, which completes the receive.
    Fin { number: u64, receive: u64 },
}

/// The frame that is being written to the stream.
#[derive(Debug)]
pub(super) struct FrameInProgress {
    pub(super) header: [u8; HEADER_BYTES],
    pub(super) body: FrameBody,
    /// The number of bytes of header and body that are in the stream.
    pub(super) written: usize,
}

impl FrameInProgress {
    /// Returns whether the next bytes go to the bulk ring.
    pub(super) fn waits_for_bulk_ring(&self) -> bool {
        self.written >= self.header.len() && self.body.is_bulk()
    }
}

/// The body after a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameBody {
    /// No body. If the frame is the RTS of a send of this rank, the number of the send.
    Empty(Option<u64>),
    /// No body; the frame completes this receive.
    Fin(u64),
    /// An eager message.
    Eager { number: u64, is_bulk: bool },
    /// A fragment of a message.
    Fragment { number: u64, attempt: u32, offset: usize, len: usize, is_bulk: bool },
}

impl FrameBody {
    /// Returns whether the body goes to the bulk ring.
    pub(super) fn is_bulk(&self) -> bool {
        matches!(self, Self::Eager { is_bulk: true, .. } | Self::Fragment { is_bulk: true, .. })
    }

    /// Returns the number of the send to which the frame belongs.
    pub(super) fn send_number(&self) -> Option<u64> {
        match *self {
            Self::Empty(number) => number,
            Self::Fin(_) => None,
            Self::Eager { number, .. } | Self::Fragment { number, .. } => Some(number),
        }
    }
}

/// The frame that is being read from the stream.
#[derive(Debug)]
pub(super) enum InboundFrame {
    Header { bytes: [u8; HEADER_BYTES], received: usize },
    Body { destination: BodyDestination, received: usize, len: usize, is_bulk: bool },
}

impl InboundFrame {
    pub(super) const AWAITING_HEADER: Self = Self::Header { bytes: [0; HEADER_BYTES], received: 0 };
}

/// The destination of received bytes.
#[derive(Debug)]
pub(super) enum BodyDestination {
    /// An unexpected message: no receive has matched it yet.
    Unexpected(UnexpectedMessage),
    /// The buffer of a receive.
    Receive(u64),
    /// The buffer of the receive that has accepted the RTS of this number.
    Fragment(u64),
    /// No destination: a fragment whose receive expired before the fragment came.
    Discard,
}

/// An RTS that a peer has sent.
#[derive(Debug)]
pub(super) struct ReceivedRts {
    pub(super) arrival: u64,
    pub(super) tag: u32,
    pub(super) dtype: crate::base::dtype::DataType,
    pub(super) len: usize,
    pub(super) exposed: Option<ExposedBuffer>,
    /// Whether a caller of the sender waits until the message has been received.
    pub(super) is_awaited: bool,
    /// The number of CTS frames sent for the message.
    pub(super) attempt: u32,
    /// The receive that has accepted the RTS.
    pub(super) receive: Option<u64>,
    /// The number of bytes that have arrived.
    pub(super) received: usize,
    /// The rank that copies the back half, if the message is read by CMA.
    pub(super) back_half: BackHalf,
}

/// The rank that copies the back half of a message that is read by CMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BackHalf {
    /// The receiver reads the whole message.
    GetAll,
    /// The receiver has asked the sender to write the back half.
    PutRequested,
    /// The sender has written this many bytes of the back half, and will write no more.
    PutDone(usize),
}

/// Whether this rank can read the peer's memory by CMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CmaAccess {
    Untested,
    Allowed,
    Denied,
}

/// The link to one peer, or to this rank itself.
#[derive(Debug)]
pub(super) struct PeerLink {
    pub(super) name: PeerName,
    pub(super) streams: PeerStreams,
    /// The error of a link that is closed in both directions.
    pub(super) close_error: Option<Error>,
    /// The errors of a link that is closed in one direction. They apply until the link is closed.
    pub(super) send_close_error: Option<Error>,
    pub(super) receive_close_error: Option<Error>,
    /// The end of the grace period in which a failure reason may still arrive.
    pub(super) departure_deadline: Option<Instant>,
    pub(super) send_queue: VecDeque<QueuedItem>,
    /// The sends whose receivers have requested fragments, served in turn.
    pub(super) fragment_queue: VecDeque<u64>,
    pub(super) current_frame: Option<FrameInProgress>,
    /// Whether the peer is on the list of peers with frames to send.
    pub(super) is_pending: bool,
    /// Whether the stream was full, and the endpoint has not reported room since.
    pub(super) is_stream_full: bool,
    /// The credit in use: the part of the peer's buffer for this rank that this rank's messages
    /// occupy.
    pub(super) used_credit: usize,
    pub(super) inbound_frame: InboundFrame,
    pub(super) received_rts: HashMap<u64, ReceivedRts>,
    pub(super) last_rts: u64,
    /// The bytes held for the peer, and the credit not yet returned to it.
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

    /// Returns whether no frame waits to be written.
    pub(super) fn is_idle(&self) -> bool {
        self.current_frame.is_none() && self.send_queue.is_empty() && self.fragment_queue.is_empty()
    }

    /// Removes the queued frame of a send if none of its bytes are in the stream. Returns true if a
    /// frame was removed.
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

    /// Returns whether this rank's bulk ring is in use for the peer.
    pub(super) fn uses_bulk_ring(&mut self, domain: &dyn SharedDomain) -> bool {
        let is_under_way =
            self.current_frame.as_ref().is_some_and(|current| current.body.is_bulk());
        self.close_error.is_none() && (is_under_way || !self.streams.is_bulk_ring_drained(domain))
    }

    /// Returns whether bytes of a send are being written to the stream.
    pub(super) fn is_sending(&self, number: u64) -> bool {
        self.current_frame.as_ref().is_some_and(|current| {
            current.written > 0
                && !matches!(current.body, FrameBody::Empty(_))
                && current.body.send_number() == Some(number)
        })
    }

    /// Returns whether frames can be sent to the peer.
    pub(super) fn is_open(&self) -> bool {
        self.close_error.is_none() && self.send_close_error.is_none()
    }

    /// Returns the error with which a send to the peer fails at once. During the grace period, a
    /// send to the peer waits for the end of that period.
    pub(super) fn send_refusal(&self) -> Option<&Error> {
        let out_closed =
            self.send_close_error.as_ref().filter(|_| self.departure_deadline.is_none());
        self.close_error.as_ref().or(out_closed)
    }

    /// Drops all frames to the peer.
    pub(super) fn clear_outbound(&mut self) {
        self.send_queue.clear();
        self.fragment_queue.clear();
        self.current_frame = None;
    }

    /// Drops all frames to and from the peer.
    pub(super) fn clear(&mut self) {
        self.clear_outbound();
        self.inbound_frame = InboundFrame::AWAITING_HEADER;
        self.received_rts.clear();
    }
}
