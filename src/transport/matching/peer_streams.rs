//! The byte streams between this rank and a peer. Inside a node, they are rings in shared memory.
//! The bodies of long frames go through bulk rings instead: each rank has one bulk ring, which
//! serves one peer at a time. Between nodes, the streams are those of an endpoint.

use super::frame::MAX_FRAGMENT;
use crate::base::buffer::{Dst, Src};
use crate::base::error::Result;
use crate::base::ids::Rank;
use crate::base::sync::{AtomicU64, fence_with_rmw};
use crate::transport::loans::MessageLoan;
use crate::transport::region::Region;
use crate::transport::ring::{RingReader, RingWriter};
use crate::transport::{Channel, Endpoint, SharedDomain};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// The size of the staging buffer. A read of a stream between nodes takes up to this number of
/// bytes, so that several short frames need only one read.
const STAGING_BYTES: usize = 16 << 10;

/// A read of at least this number of bytes from a stream between nodes bypasses the staging buffer.
const DIRECT_RECEIVE_BYTES: usize = 4 << 10;

/// The writer publishes its bytes to the reader when this number of bytes is unpublished, so that
/// the reader copies these bytes while the writer writes more.
const PUBLISH_BYTES: usize = 16 << 10;

/// The maximum length of a fragment in a normal ring, which is used while the bulk ring serves
/// another peer.
const RING_FRAGMENT_BYTES: usize = 16 << 10;

/// How many times the reader of a ring polls for more bytes, and the writer for more room, within a
/// transfer that has begun. The other side is about to continue, so these polls usually succeed.
pub(super) const STREAM_POLLS: u32 = 300;

/// This rank's bulk ring, as the writer to one peer, and the peer's bulk ring, as the reader of
/// this rank.
#[derive(Debug)]
pub(super) struct BulkRings {
    writer: RingWriter,
    pub(super) reader: RingReader,
}

/// The streams to and from one peer.
#[derive(Debug)]
pub(super) enum PeerStreams {
    /// No streams: the peer is this rank itself.
    Loopback,
    /// Rings to and from a rank of the domain, and bulk rings for long messages.
    Rings { peer: Rank, writer: RingWriter, reader: RingReader, bulk_rings: Box<BulkRings> },
    /// The streams of an endpoint. `sent` and `used` count the bytes that were sent and used in
    /// all.
    Streams { endpoint: Arc<dyn Endpoint>, peer: Rank, staging: Staging, sent: u64, used: u64 },
}

/// Bytes that were read ahead from the stream of an endpoint.
#[derive(Debug, Default)]
pub(super) struct Staging {
    memory: Vec<u8>,
    /// The bytes that were not used.
    start: usize,
    end: usize,
}

impl Staging {
    /// Receives bytes, through this memory if there is little room.
    fn receive(&mut self, endpoint: &dyn Endpoint, peer: Rank, into: Dst<'_>) -> Result<usize> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            let is_direct = into.len() >= DIRECT_RECEIVE_BYTES;
            if !is_direct && self.memory.is_empty() {
                self.memory = vec![0; STAGING_BYTES];
            }
            let room = if is_direct { into } else { Dst::from(self.memory.as_mut_slice()) };
            let got = endpoint.try_receive(peer, Channel::PointToPoint, room)?;
            if is_direct {
                return Ok(got);
            }
            self.end = got;
        }
        let len = into.len().min(self.end - self.start);
        into.slice(0, len).copy_from(Src::from(&self.memory[self.start..self.start + len]));
        self.start += len;
        Ok(len)
    }
}

impl PeerStreams {
    /// Returns the rings between two ranks of the domain.
    pub(super) fn rings_between(me: Rank, peer: Rank) -> Self {
        let (writer, reader) = (RingWriter::new_bulk(me, peer), RingReader::new_bulk(peer, me));
        Self::Rings {
            peer,
            writer: RingWriter::new(me, peer),
            reader: RingReader::new(peer, me),
            bulk_rings: Box::new(BulkRings { writer, reader }),
        }
    }

    /// Returns the streams of an endpoint to and from a peer.
    pub(super) fn streams_of(endpoint: Arc<dyn Endpoint>, peer: Rank) -> Self {
        Self::Streams { endpoint, peer, staging: Staging::default(), sent: 0, used: 0 }
    }

    /// Returns the number of bytes that were sent, and the number of received bytes that were used.
    pub(super) fn positions(&self) -> (u64, u64) {
        match self {
            Self::Loopback => (0, 0),
            Self::Rings { writer, reader, .. } => (writer.position(), reader.position()),
            Self::Streams { sent, used, .. } => (*sent, *used),
        }
    }

    /// Writes a record (the header and body of an eager message) to the ring, and wakes the peer.
    /// Returns false and writes nothing if the ring has no room for all of it.
    pub(super) fn write_record(
        &mut self,
        domain: &dyn SharedDomain,
        fence_word: &AtomicU64,
        first_word: u64,
        bytes: Src<'_>,
    ) -> bool {
        let Self::Rings { peer, writer: out, .. } = self else { return false };
        let is_written = out.write_record(domain.region(), first_word, bytes);
        if is_written {
            fence_with_rmw(fence_word);
            domain.wake_message_waiter_fenced(*peer);
            out.prefetch_next(domain.region(), bytes.len());
        }
        is_written
    }

    /// Writes as many bytes of `parts` to the stream as there is room for. The peer sees them after
    /// [`PeerStreams::flush`].
    pub(super) fn send(&mut self, domain: &dyn SharedDomain, parts: &[Src<'_>]) -> Result<usize> {
        match self {
            Self::Loopback => Ok(0),
            Self::Rings { writer: out, .. } => out.write(domain.region(), parts),
            Self::Streams { endpoint, peer, sent, .. } => {
                let written = endpoint.try_send(*peer, Channel::PointToPoint, parts)?;
                *sent += written as u64;
                Ok(written)
            }
        }
    }

    /// Begins the loan of a message to the endpoint, if there is one and no loan. Returns true if
    /// there is a loan.
    pub(super) fn begin_loan(&self, loan: &mut Option<MessageLoan>) -> bool {
        if let Self::Streams { endpoint, peer, .. } = self
            && loan.is_none()
        {
            *loan = Some(MessageLoan::new(Arc::clone(endpoint), *peer));
        }
        loan.is_some()
    }

    /// Writes as [`PeerStreams::send`] to the stream of an endpoint, to which the body is lent.
    pub(super) fn send_lent(&mut self, head: Src<'_>, body: Src<'static>) -> Result<usize> {
        let Self::Streams { endpoint, peer, sent, .. } = self else { return Ok(0) };
        let written = endpoint.try_send_lent(*peer, Channel::PointToPoint, head, body)?;
        *sent += written as u64;
        Ok(written)
    }

    /// Writes as much of the rest of a header and its body as there is room for. If the body is
    /// long and the peer is in the domain, the peer reads a piece of the body while this rank
    /// writes the next piece.
    pub(super) fn send_body(
        &mut self,
        domain: &dyn SharedDomain,
        [head, body]: [Src<'_>; 2],
        is_bulk: bool,
    ) -> Result<usize> {
        let is_ring = matches!(self, Self::Rings { .. });
        if !is_ring || !is_bulk && body.len() < PUBLISH_BYTES {
            return self.send(domain, &[head, body]);
        }
        let sent = self.send(domain, &[head])?;
        self.flush(domain);
        let Self::Rings { peer, writer: out, bulk_rings, .. } = self else {
            return Ok(sent);
        };
        if sent < head.len() {
            return Ok(sent);
        }
        let writer = if is_bulk { &mut bulk_rings.writer } else { out };
        let body_sent = writer.write_stream(domain.region(), STREAM_POLLS, body)?;
        // This wake is needed in addition to the wake of `flush`: the peer may have gone to sleep
        // after it read the header.
        fence(Ordering::SeqCst);
        domain.wake_message_waiter_fenced(*peer);
        Ok(sent + body_sent)
    }

    /// Writes a header to the ring and its body to the bulk ring. The caller has reserved the bulk
    /// ring for this peer. Returns false and writes nothing if there is no room for all of it.
    pub(super) fn write_to_bulk_ring(
        &mut self,
        domain: &dyn SharedDomain,
        head: Src<'_>,
        body: Src<'_>,
    ) -> bool {
        let region = domain.region();
        let Self::Rings { writer: out, bulk_rings, .. } = self else { return false };
        if !out.can_write(region, head.len()) || !bulk_rings.writer.can_write(region, body.len()) {
            return false;
        }
        let sent = self.send_body(domain, [head, body], true);
        let is_sent = sent.is_ok_and(|sent| sent == head.len() + body.len());
        if is_sent && let Self::Rings { bulk_rings, .. } = self {
            bulk_rings.writer.prefetch_next(region, body.len());
        }
        is_sent
    }

    /// Returns the maximum length of a fragment.
    pub(super) fn max_fragment(&self, is_bulk: bool) -> usize {
        if matches!(self, Self::Rings { .. }) && !is_bulk {
            RING_FRAGMENT_BYTES
        } else {
            MAX_FRAGMENT
        }
    }

    /// Publishes the written bytes to the peer.
    pub(super) fn flush(&mut self, domain: &dyn SharedDomain) {
        self.flush_above(0, domain);
    }

    /// Publishes the written bytes if they are at least [`PUBLISH_BYTES`].
    pub(super) fn flush_fragment(&mut self, domain: &dyn SharedDomain) {
        self.flush_above(PUBLISH_BYTES, domain);
    }

    fn flush_above(&mut self, bytes: usize, domain: &dyn SharedDomain) {
        if let Self::Rings { peer, writer: out, .. } = self
            && out.unpublished_bytes() >= bytes
            && out.publish(domain.region())
        {
            fence(Ordering::SeqCst);
            domain.wake_message_waiter_fenced(*peer);
        }
    }

    /// The caller has written a frame in part. Returns whether the stream has room now, so that the
    /// caller can continue. If it returns false, the peer or the endpoint wakes this rank when
    /// there is room.
    pub(super) fn has_room_now(
        &mut self,
        domain: &dyn SharedDomain,
        is_bulk: bool,
    ) -> Result<bool> {
        match self {
            Self::Rings { bulk_rings, .. } if is_bulk => {
                bulk_rings.writer.request_room_wakeup(domain.region())
            }
            Self::Rings { writer: out, .. } => out.request_room_wakeup(domain.region()),
            Self::Loopback | Self::Streams { .. } => Ok(false),
        }
    }

    /// Returns whether the peer has read all bytes of the bulk ring.
    pub(super) fn is_bulk_ring_drained(&mut self, domain: &dyn SharedDomain) -> bool {
        match self {
            Self::Rings { bulk_rings, .. } => bulk_rings.writer.is_drained(domain.region()),
            Self::Loopback | Self::Streams { .. } => true,
        }
    }

    /// Reads bytes of a body, including bytes that arrive during the call.
    pub(super) fn receive_body(
        &mut self,
        domain: &dyn SharedDomain,
        into: Dst<'_>,
        is_bulk: bool,
    ) -> Result<usize> {
        let Self::Rings { reader: ring, bulk_rings, .. } = self else {
            return self.receive(domain, into);
        };
        let reader = if is_bulk { &mut bulk_rings.reader } else { ring };
        reader.read_stream(domain.region(), STREAM_POLLS, into)
    }

    /// Reads bytes that have arrived.
    pub(super) fn receive(&mut self, domain: &dyn SharedDomain, into: Dst<'_>) -> Result<usize> {
        match self {
            Self::Loopback => Ok(0),
            Self::Rings { reader: ring, .. } => ring.read(domain.region(), into),
            Self::Streams { endpoint, peer, staging, used, .. } => {
                let len = staging.receive(endpoint.as_ref(), *peer, into)?;
                *used += len as u64;
                Ok(len)
            }
        }
    }

    /// Returns whether more bytes may have arrived than were taken.
    pub(super) fn may_have_more(&self, domain: &dyn SharedDomain) -> bool {
        match self {
            Self::Loopback => false,
            Self::Rings { reader: into, bulk_rings, .. } => [into, &bulk_rings.reader]
                .iter()
                .any(|ring_reader| ring_reader.has_more(&ring_reader.ring(domain.region()))),
            Self::Streams { .. } => true,
        }
    }

    /// Releases the room of bytes that this rank has read, so that the peer can write there.
    pub(super) fn release_received(&mut self, domain: &dyn SharedDomain) {
        self.release_readers(domain, RingReader::release);
    }

    /// Releases the room of bytes that this rank has read, if they are at least a quarter of a
    /// ring.
    pub(super) fn release_received_lazily(&mut self, domain: &dyn SharedDomain) {
        self.release_readers(domain, RingReader::release_lazily);
    }

    fn release_readers(
        &mut self,
        domain: &dyn SharedDomain,
        release: impl Fn(&mut RingReader, &Region) -> bool,
    ) {
        let Self::Rings { peer, reader: into, bulk_rings, .. } = self else { return };
        for ring_reader in [into, &mut bulk_rings.reader] {
            if release(ring_reader, domain.region()) {
                domain.wake_message_waiter_fenced(*peer);
            }
        }
    }
}
