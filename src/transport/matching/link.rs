//! The link between this rank and one peer: the streams in both directions, the frames that are
//! partly written or partly read, and the credit. The credit is the number of bytes of eager
//! messages that the two ranks may buffer for each other. [`PeerTable`](super::peers::PeerTable)
//! owns all links, and no other code changes a link.

use super::frame::{HEADER_BYTES, MessageFrame};
use super::limits::MatchingLimits;
use super::peer_streams::PeerStreams;
use super::unexpected::UnexpectedMessage;
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use crate::transport::{Endpoint, PeerName, SharedDomain};
use std::collections::VecDeque;
use std::sync::Arc;
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
    /// The FIN for the announced message `number`. When it is in the stream, the receive `receive`
    /// completes.
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
    /// Returns whether the header is in the stream and the next bytes go to the bulk ring.
    pub(super) fn waits_for_bulk_ring(&self) -> bool {
        self.written >= self.header.len() && self.body.is_bulk()
    }
}

/// The body after a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameBody {
    /// No body. The number is that of the send if the frame is an RTS, and `None` otherwise.
    Empty(Option<u64>),
    /// No body. When the frame is in the stream, this receive completes.
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
    /// A buffer of the engine, because no receive has matched the message.
    Unexpected(UnexpectedMessage),
    /// The buffer of a receive.
    Receive(u64),
    /// The buffer of the receive that has accepted the RTS with this number.
    Fragment(u64),
    /// No destination: the receive of the fragment expired before the fragment came.
    Discard,
}

/// The link to one peer, or to this rank itself.
#[derive(Debug)]
pub(super) struct PeerLink {
    pub(super) name: PeerName,
    pub(super) streams: PeerStreams,
    /// The error of a link that is closed in both directions; `None` while a direction is open.
    pub(super) close_error: Option<Error>,
    /// The error of the outgoing stream, if that stream has ended. Once `close_error` is set,
    /// `close_error` applies instead.
    pub(super) send_close_error: Option<Error>,
    /// The error of the incoming stream, if that stream has ended. Once `close_error` is set,
    /// `close_error` applies instead.
    pub(super) receive_close_error: Option<Error>,
    /// The end of the grace period after a stream has ended ([`super::peer_departure`]). A failure
    /// reason may still arrive until then.
    pub(super) departure_deadline: Option<Instant>,
    pub(super) send_queue: VecDeque<QueuedItem>,
    /// The sends whose fragments the peer has requested. A send writes one fragment, and then moves
    /// to the end of the queue.
    pub(super) fragment_queue: VecDeque<u64>,
    pub(super) current_frame: Option<FrameInProgress>,
    /// Whether the peer is on the flush list, the list of peers with frames to send.
    pub(super) is_pending: bool,
    /// Whether a stream between nodes was full, and the endpoint has not reported room since.
    pub(super) is_stream_full: bool,
    /// The credit in use: the cost of this rank's eager messages that the peer may still buffer.
    pub(super) used_credit: usize,
    pub(super) inbound_frame: InboundFrame,
    /// The cost of the peer's eager messages that this rank buffers.
    pub(super) held_cost: usize,
    /// The credit of messages that this rank no longer buffers, as far as it has not been returned
    /// to the peer yet.
    pub(super) owed_credit: usize,
}

#[cold]
fn missing_streams_error(peer: Rank) -> Error {
    Error::internal(format!("rank {peer} is on another node, and this group has no streams to it"))
}

impl PeerLink {
    /// Creates the link to rank `peer` of the group. If the peer shares memory with this rank,
    /// `local` is the peer's rank in the domain (the ranks that share memory).
    ///
    /// # Errors
    /// `Internal` if a rank of another node has no streams.
    pub(super) fn new(
        domain: &dyn SharedDomain,
        endpoint: Option<&Arc<dyn Endpoint>>,
        peer: Rank,
        local: Option<Rank>,
    ) -> Result<Self> {
        let me = domain.rank();
        let (name, streams) = match (local, endpoint) {
            (Some(local), _) if local == me => (domain.peer(me), PeerStreams::Loopback),
            (Some(local), _) => (domain.peer(local), PeerStreams::rings_between(me, local)),
            (None, Some(endpoint)) => {
                (endpoint.peer(peer), PeerStreams::streams_of(Arc::clone(endpoint), peer))
            }
            (None, None) => return Err(missing_streams_error(peer)),
        };
        Ok(Self {
            name: name.clone(),
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
            held_cost: 0,
            owed_credit: 0,
        })
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

    /// Removes the queued CTS of a message.
    pub(super) fn dequeue_cts(&mut self, number: u64) {
        let is_its = |item: &QueuedItem| matches!(item, QueuedItem::Control(MessageFrame::Cts { number: asked, .. }) if *asked == number);
        self.send_queue.retain(|item| !is_its(item));
    }

    /// Returns whether this rank's bulk ring is in use for the peer: it has bytes that the peer has
    /// not read, or a frame in progress will write to it.
    pub(super) fn uses_bulk_ring(&mut self, domain: &dyn SharedDomain) -> bool {
        let is_under_way =
            self.current_frame.as_ref().is_some_and(|current| current.body.is_bulk());
        self.close_error.is_none() && (is_under_way || !self.streams.is_bulk_ring_drained(domain))
    }

    /// Returns whether an eager message or a fragment of a send is partly in the stream.
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

    /// Returns whether no more frames can come from the peer.
    pub(super) fn is_receive_closed(&self) -> bool {
        self.close_error.is_some() || self.receive_close_error.is_some()
    }

    /// Returns whether the peer has room to buffer a message of this length.
    pub(super) fn has_credit(&self, len: usize, limits: &MatchingLimits) -> bool {
        len <= limits.eager_bytes
            && self.used_credit + MatchingLimits::credit_cost(len) <= limits.held_bytes
    }

    /// Returns whether the peer may send an eager message of this length to this rank within its
    /// credit.
    pub(super) fn may_send_eager(&self, len: usize, limits: &MatchingLimits) -> bool {
        let cost = MatchingLimits::credit_cost(len);
        len <= limits.eager_bytes && self.held_cost + self.owed_credit + cost <= limits.held_bytes
    }

    /// Returns the peer's rank in the domain, if the peer shares memory with this rank.
    pub(super) fn ring_rank(&self) -> Option<Rank> {
        match self.streams {
            PeerStreams::Rings { peer, .. } => Some(peer),
            PeerStreams::Loopback | PeerStreams::Streams { .. } => None,
        }
    }

    /// Counts credit that the peer has returned.
    ///
    /// # Errors
    /// `Internal` if this rank did not use that credit.
    pub(super) fn regain_credit(&mut self, bytes: u64) -> Result<()> {
        let left =
            usize::try_from(bytes).ok().and_then(|bytes| self.used_credit.checked_sub(bytes));
        let Some(left) = left else {
            return Err(Error::internal("it returned more credit than this rank used"));
        };
        self.used_credit = left;
        Ok(())
    }

    /// Counts that this rank no longer buffers a message of this length from the peer. Once the
    /// owed credit reaches `threshold`, returns it; the caller then sends it to the peer. If
    /// `is_own`, the peer is this rank itself, which needs no credit frame.
    pub(super) fn return_credit(
        &mut self,
        len: usize,
        is_own: bool,
        threshold: usize,
    ) -> Option<u64> {
        let cost = MatchingLimits::credit_cost(len);
        self.held_cost = self.held_cost.saturating_sub(cost);
        if is_own {
            self.used_credit = self.used_credit.saturating_sub(cost);
            return None;
        }
        self.owed_credit += cost;
        (self.owed_credit >= threshold).then(|| std::mem::take(&mut self.owed_credit) as u64)
    }

    /// Returns the error with which a new send to the peer fails without being posted. During the
    /// grace period there is no such error: the send is posted and waits for the end of that
    /// period.
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
    }

    /// Returns the number of bytes that the engine has allocated for an unexpected message that is
    /// still arriving.
    #[cfg(any(test, fuzzing))]
    pub(super) fn buffered_bytes(&self) -> usize {
        match &self.inbound_frame {
            InboundFrame::Body { destination: BodyDestination::Unexpected(message), .. } => {
                message.buffered_bytes()
            }
            InboundFrame::Body { .. } | InboundFrame::Header { .. } => 0,
        }
    }
}
