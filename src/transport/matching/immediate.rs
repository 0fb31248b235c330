//! The receiving side of the fast path: takes the next message from the ring of its sender, if the
//! message is complete and matches the receive.

use super::frame::{HEADER_BYTES, MessageFrame};
use super::limits::MatchingLimits;
use super::link::{InboundFrame, PeerLink};
use super::peer_streams::{PeerStreams, STREAM_POLLS};
use super::posted::is_internal_tag;
use crate::base::buffer::Dst;
use crate::base::error::Result;
use crate::base::ids::Rank;
use crate::transport::ring::{ByteRing, InlineSnapshot, RingReader};
use crate::transport::{Delivery, ImmediateMessage, Region, SharedDomain};

/// The result of a poll for a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FastReceive {
    Message(Delivery),
    /// No message has arrived. `from` is the sender's rank in the domain (the ranks that share
    /// memory). `taken` is the reader's position in the ring from that rank.
    Empty {
        from: Rank,
        taken: u64,
    },
    /// The next frame, or the state of the engine, needs a posted receive.
    NeedsPosting,
}

impl PeerLink {
    /// Copies the next message in the peer's ring to the receiver's buffer, if the message is
    /// complete and matches. If the ring is empty, polls up to `polls` times.
    pub(super) fn take_immediate(
        &mut self,
        domain: &dyn SharedDomain,
        limits: &MatchingLimits,
        request: &ImmediateMessage<Dst<'static>>,
        polls: u32,
    ) -> FastReceive {
        let is_at_frame_start =
            matches!(self.inbound_frame, InboundFrame::Header { received: 0, .. });
        if !is_at_frame_start || self.is_receive_closed() {
            return FastReceive::NeedsPosting;
        }
        let PeerStreams::Rings { reader, peer, .. } = &mut self.streams else {
            return FastReceive::NeedsPosting;
        };
        let (into, region) = (request.bytes, domain.region());
        let ring = reader.ring(region);
        reader.poll_for(&ring, into.len(), polls);
        let PeekedFrame { frame, available, inline } = match peek_frame(reader, &ring) {
            Ok(Some(seen)) => seen,
            Ok(None) => return FastReceive::Empty { from: *peer, taken: reader.position() },
            Err(_) => return FastReceive::NeedsPosting,
        };
        let (tag, dtype, len, is_bulk) = match frame {
            Some(MessageFrame::Eager { tag, dtype, len, is_bulk }) => (tag, dtype, len, is_bulk),
            Some(MessageFrame::Credit { bytes }) => return self.take_credit(domain, bytes),
            _ => return FastReceive::NeedsPosting,
        };
        let fits = |len: &usize| *len <= into.len() && HEADER_BYTES <= available;
        let Some(len) = usize::try_from(len).ok().filter(fits) else {
            return FastReceive::NeedsPosting;
        };
        let is_wanted = request.tag.map_or(!is_internal_tag(tag), |wanted| wanted == tag);
        if !is_wanted || dtype != request.dtype || !self.may_send_eager(len, limits) {
            return FastReceive::NeedsPosting;
        }
        let PeerStreams::Rings { reader, bulk_rings, .. } = &mut self.streams else {
            return FastReceive::NeedsPosting;
        };
        let into = into.slice(0, len);
        let is_taken = match inline {
            Some(inline) => reader.take_inline(&ring, inline, into).map(|()| true),
            None if is_bulk => take_from_bulk_ring(reader, &mut bulk_rings.reader, region, into),
            None => reader.take_peeked(&ring, HEADER_BYTES, STREAM_POLLS, into),
        };
        if !is_taken.unwrap_or(false) {
            return FastReceive::NeedsPosting;
        }
        if is_bulk {
            // The peer can use its bulk ring for another rank now.
            self.streams.release_received(domain);
        } else {
            self.streams.release_received_lazily(domain);
        }
        FastReceive::Message(Delivery { peer: self.name.rank, tag, bytes: len })
    }

    /// Takes a credit frame from the ring. A peer sends credit frames from time to time, and the
    /// message may be the next frame. Returns `Empty`, so that the caller polls again.
    #[cold]
    fn take_credit(&mut self, domain: &dyn SharedDomain, bytes: u64) -> FastReceive {
        // A frame that returns too much credit stays in the ring, so that a posted receive finds it
        // and reports the error.
        if self.regain_credit(bytes).is_err() {
            return FastReceive::NeedsPosting;
        }
        let PeerStreams::Rings { reader, peer, .. } = &mut self.streams else {
            return FastReceive::NeedsPosting;
        };
        let ring = reader.ring(domain.region());
        if reader.skip(&ring, HEADER_BYTES).is_err() {
            return FastReceive::NeedsPosting;
        }
        FastReceive::Empty { from: *peer, taken: reader.position() }
    }
}

/// The next frame in a ring.
struct PeekedFrame {
    /// The decoded header; `None` if the bytes are no valid header.
    frame: Option<MessageFrame>,
    /// The number of bytes of this frame and of later frames that have arrived.
    available: usize,
    /// The copy of the message next to the writer's position (see [`crate::transport::ring`]), if
    /// there is one.
    inline: Option<InlineSnapshot>,
}

/// Returns the next frame in a ring without taking it; `None` if less than a header has arrived.
fn peek_frame(reader: &mut RingReader, ring: &ByteRing<'_>) -> Result<Option<PeekedFrame>> {
    if let Some(snapshot) = reader.peek_inline(ring)?
        && let Some(frame) =
            MessageFrame::eager_from_first_word(snapshot.first_word, snapshot.len as u64)
    {
        let available = HEADER_BYTES + snapshot.len;
        return Ok(Some(PeekedFrame { frame: Some(frame), available, inline: Some(snapshot) }));
    }
    let mut head = [0; HEADER_BYTES];
    let available = reader.peek(ring, Dst::from(&mut head[..]))?;
    let frame = MessageFrame::decode(&head);
    Ok((available > 0).then_some(PeekedFrame { frame, available, inline: None }))
}

/// Takes the body from the bulk ring, and then the header from the normal ring. If the body has not
/// arrived, leaves both in place and returns false.
fn take_from_bulk_ring(
    reader: &mut RingReader,
    bulk_reader: &mut RingReader,
    region: &Region,
    into: Dst<'_>,
) -> Result<bool> {
    let is_taken = bulk_reader.take_peeked(&bulk_reader.ring(region), 0, STREAM_POLLS, into)?;
    if is_taken {
        reader.skip(&reader.ring(region), HEADER_BYTES)?;
    }
    Ok(is_taken)
}
