//! The streams between this rank and another: rings and lanes inside a node, those of an endpoint
//! between nodes.

use super::frame::MAX_FRAGMENT;
use crate::base::buffer::{Dst, Src};
use crate::base::error::Result;
use crate::base::ids::Rank;
use crate::transport::region::Region;
use crate::transport::ring::{RingReader, RingWriter};
use crate::transport::{Channel, Endpoint, SharedDomain};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// How much is taken from a stream between nodes at once, where it does not go straight to its
/// place.
const STAGING_BYTES: usize = 16 << 10;

/// From how many bytes on they go straight to their place.
const DIRECT_RECEIVE_BYTES: usize = 4 << 10;

/// How many unseen bytes are shown before more are put.
const PUBLISH_BYTES: usize = 16 << 10;

/// How much of a message that was asked for goes into a ring at once, where the lane serves
/// another.
const RING_FRAGMENT_BYTES: usize = 16 << 10;

/// How often either end of a ring looks whether the other goes on with what has begun: it is about
/// to.
pub(super) const STREAM_POLLS: u32 = 300;

/// This rank's lane, for one peer, and the peer's for this rank.
#[derive(Debug)]
pub(super) struct BulkRings {
    writer: RingWriter,
    pub(super) reader: RingReader,
}

impl BulkRings {
    pub(super) fn new_between(me: Rank, peer: Rank) -> Box<Self> {
        Box::new(Self {
            writer: RingWriter::new_bulk(me, peer),
            reader: RingReader::new_bulk(peer, me),
        })
    }
}

/// The streams.
#[derive(Debug)]
pub(super) enum PeerStreams {
    /// None: this rank itself.
    Loopback,
    /// Rings, to and from a rank of the domain, and lanes for long messages.
    Rings { peer: Rank, writer: RingWriter, reader: RingReader, bulk_rings: Box<BulkRings> },
    /// The streams of an endpoint, with what has been taken from it and not been used.
    Streams { endpoint: Arc<dyn Endpoint>, peer: Rank, staging: Vec<u8>, staging_used: usize },
}

impl PeerStreams {
    /// Puts parts into the stream as far as goes. They are seen after [`PeerStreams::flush`].
    pub(super) fn send(&mut self, domain: &dyn SharedDomain, parts: &[Src<'_>]) -> Result<usize> {
        match self {
            Self::Loopback => Ok(0),
            Self::Rings { writer: out, .. } => out.write(domain.region(), parts),
            Self::Streams { endpoint, peer, .. } => {
                endpoint.try_send(*peer, Channel::PointToPoint, parts)
            }
        }
    }

    /// The same for what is left of a head and of its body; a peer in the domain takes one part of
    /// a body while the next is put.
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
        let Self::Rings { peer, writer: out, bulk_rings: lanes, .. } = self else {
            return Ok(sent);
        };
        if sent < head.len() {
            return Ok(sent);
        }
        let writer = if is_bulk { &mut lanes.writer } else { out };
        let body_sent = writer.write_stream(domain.region(), STREAM_POLLS, body)?;
        // Also for a peer that has gone to sleep with its head.
        fence(Ordering::SeqCst);
        domain.wake_message_waiter_fenced(*peer);
        Ok(sent + body_sent)
    }

    /// Puts a head, and its body into the lane, which is free, if there is room for all of it;
    /// false where nothing was put.
    pub(super) fn write_to_bulk_ring(
        &mut self,
        domain: &dyn SharedDomain,
        head: Src<'_>,
        body: Src<'_>,
    ) -> bool {
        let region = domain.region();
        let Self::Rings { writer: out, bulk_rings: lanes, .. } = self else { return false };
        if !out.can_write(region, head.len()) || !lanes.writer.can_write(region, body.len()) {
            return false;
        }
        let sent = self.send_body(domain, [head, body], true);
        let is_sent = sent.is_ok_and(|sent| sent == head.len() + body.len());
        if is_sent && let Self::Rings { bulk_rings: lanes, .. } = self {
            lanes.writer.prefetch_next(region, body.len());
        }
        is_sent
    }

    /// How long a piece of a message may be.
    pub(super) fn max_fragment(&self, is_bulk: bool) -> usize {
        if matches!(self, Self::Rings { .. }) && !is_bulk {
            RING_FRAGMENT_BYTES
        } else {
            MAX_FRAGMENT
        }
    }

    /// Shows the peer what was put into the stream.
    pub(super) fn flush(&mut self, domain: &dyn SharedDomain) {
        self.flush_above(0, domain);
    }

    /// The same where that is as much as a piece.
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

    /// After a send that did not take all: whether it is worth trying again at once. Else somebody
    /// tells.
    pub(super) fn has_room_now(
        &mut self,
        domain: &dyn SharedDomain,
        is_bulk: bool,
    ) -> Result<bool> {
        match self {
            Self::Rings { bulk_rings: lanes, .. } if is_bulk => {
                lanes.writer.request_room_wakeup(domain.region())
            }
            Self::Rings { writer: out, .. } => out.request_room_wakeup(domain.region()),
            Self::Loopback | Self::Streams { .. } => Ok(false),
        }
    }

    /// Whether all that went into the lane has been read.
    pub(super) fn is_bulk_ring_drained(&mut self, domain: &dyn SharedDomain) -> bool {
        match self {
            Self::Rings { bulk_rings: lanes, .. } => lanes.writer.is_drained(domain.region()),
            Self::Loopback | Self::Streams { .. } => true,
        }
    }

    /// Takes a part of a body, and what comes of it meanwhile.
    pub(super) fn receive_body(
        &mut self,
        domain: &dyn SharedDomain,
        into: Dst<'_>,
        is_bulk: bool,
    ) -> Result<usize> {
        let Self::Rings { reader: ring, bulk_rings: lanes, .. } = self else {
            return self.receive(domain, into);
        };
        let reader = if is_bulk { &mut lanes.reader } else { ring };
        reader.read_stream(domain.region(), STREAM_POLLS, into)
    }

    /// Takes what has come, as far as there is room.
    pub(super) fn receive(&mut self, domain: &dyn SharedDomain, into: Dst<'_>) -> Result<usize> {
        match self {
            Self::Loopback => Ok(0),
            Self::Rings { reader: ring, .. } => ring.read(domain.region(), into),
            Self::Streams { endpoint, peer, staging: stage, staging_used: used } => {
                if *used == stage.len() {
                    if into.len() >= DIRECT_RECEIVE_BYTES {
                        return endpoint.try_receive(*peer, Channel::PointToPoint, into);
                    }
                    stage.resize(STAGING_BYTES, 0);
                    let room = Dst::from(stage.as_mut_slice());
                    let got = endpoint.try_receive(*peer, Channel::PointToPoint, room);
                    stage.truncate(*got.as_ref().unwrap_or(&0));
                    *used = 0;
                    got?;
                }
                let len = into.len().min(stage.len() - *used);
                into.slice(0, len).copy_from(Src::from(&stage[*used..*used + len]));
                *used += len;
                Ok(len)
            }
        }
    }

    /// Whether more may have come than what has been taken.
    pub(super) fn may_have_more(&self, domain: &dyn SharedDomain) -> bool {
        match self {
            Self::Loopback => false,
            Self::Rings { reader: into, bulk_rings: lanes, .. } => {
                [into, &lanes.reader].iter().any(|way| way.has_more(&way.ring(domain.region())))
            }
            Self::Streams { .. } => true,
        }
    }

    /// Gives the room of what was taken back to the peer.
    pub(super) fn release_received(&mut self, domain: &dyn SharedDomain) {
        self.release_readers(domain, RingReader::release);
    }

    /// The same once that is worth the trouble.
    pub(super) fn release_received_lazily(&mut self, domain: &dyn SharedDomain) {
        self.release_readers(domain, RingReader::release_lazily);
    }

    fn release_readers(
        &mut self,
        domain: &dyn SharedDomain,
        release: impl Fn(&mut RingReader, &Region) -> bool,
    ) {
        let Self::Rings { peer, reader: into, bulk_rings: lanes, .. } = self else { return };
        for way in [into, &mut lanes.reader] {
            if release(way, domain.region()) {
                domain.wake_message_waiter_fenced(*peer);
            }
        }
    }
}
