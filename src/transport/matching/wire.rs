//! The streams between this rank and another: rings and lanes inside a node, those of an endpoint
//! between nodes.

use super::frame::MAX_PIECE;
use crate::base::buffer::{Dst, Src};
use crate::base::error::Result;
use crate::base::ids::Rank;
use crate::transport::region::Region;
use crate::transport::ring::{Reader, Writer};
use crate::transport::{Channel, Endpoint, SharedDomain};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// How much is taken from a stream between nodes at once, where it does not go straight to its
/// place.
const STAGE_BYTES: usize = 16 << 10;

/// From how many bytes on they go straight to their place.
const STRAIGHT_BYTES: usize = 4 << 10;

/// How many unseen bytes are shown before more are put.
const SHOWN_BYTES: usize = 16 << 10;

/// How much of a message that was asked for goes into a ring at once, where the lane serves
/// another.
const RING_PIECE: usize = 16 << 10;

/// How often either end of a ring looks whether the other goes on with what has begun: it is about
/// to.
pub(super) const LOOKS_FOR_MORE: u32 = 300;

/// This rank's lane, for one peer, and the peer's for this rank.
#[derive(Debug)]
pub(super) struct Lanes {
    out: Writer,
    pub(super) into: Reader,
}

impl Lanes {
    pub(super) fn between(me: Rank, peer: Rank) -> Box<Self> {
        Box::new(Self { out: Writer::of_lane(me, peer), into: Reader::of_lane(peer, me) })
    }
}

/// The streams.
#[derive(Debug)]
pub(super) enum Wire {
    /// None: this rank itself.
    Own,
    /// Rings, to and from a rank of the domain, and lanes for long messages.
    Rings { peer: Rank, out: Writer, into: Reader, lanes: Box<Lanes> },
    /// The streams of an endpoint, with what has been taken from it and not been used.
    Streams { endpoint: Arc<dyn Endpoint>, peer: Rank, stage: Vec<u8>, used: usize },
}

impl Wire {
    /// Puts parts into the stream as far as goes. They are seen after [`Wire::flush`].
    pub(super) fn send(&mut self, domain: &dyn SharedDomain, parts: &[Src<'_>]) -> Result<usize> {
        match self {
            Self::Own => Ok(0),
            Self::Rings { out, .. } => out.write(domain.region(), parts),
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
        in_lane: bool,
    ) -> Result<usize> {
        let is_ring = matches!(self, Self::Rings { .. });
        if !is_ring || !in_lane && body.len() < SHOWN_BYTES {
            return self.send(domain, &[head, body]);
        }
        let sent = self.send(domain, &[head])?;
        self.flush(domain);
        let Self::Rings { peer, out, lanes, .. } = self else { return Ok(sent) };
        if sent < head.len() {
            return Ok(sent);
        }
        let way = if in_lane { &mut lanes.out } else { out };
        let streamed = way.stream(domain.region(), LOOKS_FOR_MORE, body)?;
        // Also for a peer that has gone to sleep with its head.
        fence(Ordering::SeqCst);
        domain.ring_for_messages_fenced(*peer);
        Ok(sent + streamed)
    }

    /// Puts a head, and its body into the lane, which is free, if there is room for all of it;
    /// false where nothing was put.
    pub(super) fn put_in_lane(
        &mut self,
        domain: &dyn SharedDomain,
        head: Src<'_>,
        body: Src<'_>,
    ) -> bool {
        let region = domain.region();
        let Self::Rings { out, lanes, .. } = self else { return false };
        if !out.makes_room(region, head.len()) || !lanes.out.makes_room(region, body.len()) {
            return false;
        }
        let sent = self.send_body(domain, [head, body], true);
        let is_sent = sent.is_ok_and(|sent| sent == head.len() + body.len());
        if is_sent && let Self::Rings { lanes, .. } = self {
            lanes.out.claim_next(region, body.len());
        }
        is_sent
    }

    /// How long a piece of a message may be.
    pub(super) fn longest_piece(&self, in_lane: bool) -> usize {
        if matches!(self, Self::Rings { .. }) && !in_lane { RING_PIECE } else { MAX_PIECE }
    }

    /// Shows the peer what was put into the stream.
    pub(super) fn flush(&mut self, domain: &dyn SharedDomain) {
        self.flush_beyond(0, domain);
    }

    /// The same where that is as much as a piece.
    pub(super) fn flush_piece(&mut self, domain: &dyn SharedDomain) {
        self.flush_beyond(SHOWN_BYTES, domain);
    }

    fn flush_beyond(&mut self, bytes: usize, domain: &dyn SharedDomain) {
        if let Self::Rings { peer, out, .. } = self
            && out.unpublished() >= bytes
            && out.publish(domain.region())
        {
            fence(Ordering::SeqCst);
            domain.ring_for_messages_fenced(*peer);
        }
    }

    /// After a send that did not take all: whether it is worth trying again at once. Else somebody
    /// tells.
    pub(super) fn has_room_after_all(
        &mut self,
        domain: &dyn SharedDomain,
        in_lane: bool,
    ) -> Result<bool> {
        match self {
            Self::Rings { lanes, .. } if in_lane => lanes.out.wait_for_room(domain.region()),
            Self::Rings { out, .. } => out.wait_for_room(domain.region()),
            Self::Own | Self::Streams { .. } => Ok(false),
        }
    }

    /// Whether all that went into the lane has been read.
    pub(super) fn has_cleared_lane(&mut self, domain: &dyn SharedDomain) -> bool {
        match self {
            Self::Rings { lanes, .. } => lanes.out.all_is_read(domain.region()),
            Self::Own | Self::Streams { .. } => true,
        }
    }

    /// Takes a part of a body, and what comes of it meanwhile.
    pub(super) fn receive_body(
        &mut self,
        domain: &dyn SharedDomain,
        into: Dst<'_>,
        in_lane: bool,
    ) -> Result<usize> {
        let Self::Rings { into: ring, lanes, .. } = self else {
            return self.receive(domain, into);
        };
        let way = if in_lane { &mut lanes.into } else { ring };
        way.stream(domain.region(), LOOKS_FOR_MORE, into)
    }

    /// Takes what has come, as far as there is room.
    pub(super) fn receive(&mut self, domain: &dyn SharedDomain, into: Dst<'_>) -> Result<usize> {
        match self {
            Self::Own => Ok(0),
            Self::Rings { into: ring, .. } => ring.read(domain.region(), into),
            Self::Streams { endpoint, peer, stage, used } => {
                if *used == stage.len() {
                    if into.len() >= STRAIGHT_BYTES {
                        return endpoint.try_receive(*peer, Channel::PointToPoint, into);
                    }
                    stage.resize(STAGE_BYTES, 0);
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
            Self::Own => false,
            Self::Rings { into, lanes, .. } => {
                [into, &lanes.into].iter().any(|way| way.has_more(&way.ring(domain.region())))
            }
            Self::Streams { .. } => true,
        }
    }

    /// Gives the room of what was taken back to the peer.
    pub(super) fn settle(&mut self, domain: &dyn SharedDomain) {
        self.give_back(domain, Reader::release);
    }

    /// The same once that is worth the trouble.
    pub(super) fn settle_in_parts(&mut self, domain: &dyn SharedDomain) {
        self.give_back(domain, Reader::release_in_parts);
    }

    fn give_back(
        &mut self,
        domain: &dyn SharedDomain,
        release: impl Fn(&mut Reader, &Region) -> bool,
    ) {
        let Self::Rings { peer, into, lanes, .. } = self else { return };
        for way in [into, &mut lanes.into] {
            if release(way, domain.region()) {
                domain.ring_for_messages_fenced(*peer);
            }
        }
    }
}
