//! Taking messages and answers out of the streams. Everything that a peer says is checked before it
//! counts; what makes no sense fails the group and names the peer.

use super::frame::{Frame, HEAD_BYTES, Lent, MAX_PIECE};
use super::limits::{Limits, MAX_OUTSTANDING};
use super::link::{Back, Inflow, Item, Link, Offer, Sink};
use super::outstanding::{ReceiveStage, SendStage, hold};
use super::state::State;
use super::unexpected::{Body, Message};
use super::wire::Wire;
use crate::base::buffer::Dst;
use crate::base::dtype::DataType;
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use crate::transport::Delivery;

/// How much is taken from one stream before others have their turn.
const TURN_BYTES: usize = 256 << 10;

/// Why a frame does not count.
pub(super) fn refuse<T>(what: &str) -> Result<T> {
    Err(Error::internal(what))
}

impl State {
    /// Takes what has come from a peer; true where there may be more.
    pub(super) fn drain(&mut self, peer: Rank) -> bool {
        let Link { closed, in_closed, .. } = &self.links[peer];
        if closed.is_some() || in_closed.is_some() || self.failed.is_some() {
            return false;
        }
        let mut taken = 0;
        let outcome = loop {
            match self.take(peer) {
                Ok(0) => break Ok(false),
                Ok(got) => {
                    taken += got;
                    // Whoever waits for room has some before all is taken.
                    self.links[peer].wire.settle_in_parts(self.domain.as_ref());
                }
                Err(error) => break Err(error),
            }
            if taken >= TURN_BYTES {
                break Ok(self.links[peer].wire.may_have_more(self.domain.as_ref()));
            }
        };
        self.moved += taken as u64;
        if taken > 0 {
            self.links[peer].wire.settle(self.domain.as_ref());
        }
        outcome.unwrap_or_else(|error| {
            self.broken(peer, error);
            false
        })
    }

    /// Takes the next bytes of what is under way; how many there were.
    fn take(&mut self, peer: Rank) -> Result<usize> {
        let Link { wire, inflow, offers, .. } = &mut self.links[peer];
        let (into, body_in_lane) = match inflow {
            Inflow::Head { bytes, have } => (Dst::from(&mut bytes[*have..]), None),
            Inflow::Body { sink, got, len, in_lane } => {
                let rest = *len - *got;
                let into = match sink {
                    Sink::Held(Message { body: Body::Held(bytes), .. }) => {
                        Some(Dst::from(&mut bytes[*got..]))
                    }
                    Sink::Receive(receive) => {
                        let receiving = self.receives.get_mut(receive);
                        receiving.map(|receiving| receiving.room(*got, rest))
                    }
                    Sink::Piece(number) => offers.get(number).and_then(|offer| {
                        let receiving = self.receives.get_mut(&offer.receive?)?;
                        Some(receiving.room(offer.got, rest))
                    }),
                    Sink::Held(_) | Sink::Nowhere => None,
                };
                match into {
                    Some(into) => (into, Some(*in_lane)),
                    None => return self.skip(peer, rest),
                }
            }
        };
        let taken = match body_in_lane {
            None => wire.receive(self.domain.as_ref(), into)?,
            Some(in_lane) => wire.receive_body(self.domain.as_ref(), into, in_lane)?,
        };
        let is_whole = taken == into.len();
        match inflow {
            Inflow::Head { have, .. } => *have += taken,
            Inflow::Body { sink, got, .. } => {
                *got += taken;
                if let Sink::Piece(number) = sink
                    && let Some(offer) = offers.get_mut(number)
                {
                    offer.got += taken;
                }
            }
        }
        match (body_in_lane.is_none(), is_whole) {
            (_, false) => {}
            (true, true) => self.begin(peer)?,
            (false, true) => self.finish(peer)?,
        }
        Ok(taken)
    }

    /// Takes bytes that nobody wants.
    fn skip(&mut self, peer: Rank, rest: usize) -> Result<usize> {
        let mut bytes = [0; 4096];
        let len = rest.min(bytes.len());
        let link = &mut self.links[peer];
        let Inflow::Body { got, in_lane, .. } = &mut link.inflow else { return Ok(0) };
        let into = Dst::from(&mut bytes[..len]);
        let taken = link.wire.receive_body(self.domain.as_ref(), into, *in_lane)?;
        *got += taken;
        if taken == rest {
            self.finish(peer)?;
        }
        Ok(taken)
    }

    /// A head is there.
    fn begin(&mut self, peer: Rank) -> Result<()> {
        let link = &mut self.links[peer];
        let Inflow::Head { bytes, .. } = std::mem::replace(&mut link.inflow, Inflow::START) else {
            return Ok(());
        };
        let bytes: [u8; HEAD_BYTES] = bytes;
        let Some(frame) = Frame::decode(&bytes) else { return refuse("it is no frame") };
        match frame {
            Frame::Eager { tag, dtype, len, in_lane } => {
                self.on_eager(peer, (tag, dtype), len, in_lane)
            }
            Frame::Offer { tag, dtype, number, len, lent, awaited } => {
                self.on_offer(peer, (tag, dtype), (number, len), lent, awaited)
            }
            Frame::Pull { number, attempt } => self.on_pull(peer, number, attempt),
            Frame::Piece { number, attempt, offset, len, in_lane } => {
                self.on_piece(peer, (number, attempt), (offset, len), in_lane)
            }
            Frame::Taken { number } => self.on_taken(peer, number),
            Frame::Credit { bytes } => self.on_credit(peer, bytes),
            Frame::Withdraw { number } => self.on_withdraw(peer, number),
            Frame::Share { number, address, region } => {
                self.on_share(peer, number, (address, region))
            }
            Frame::Wrote { number, len } => self.on_wrote(peer, number, len),
        }
    }

    fn expect_body(&mut self, peer: Rank, sink: Sink, len: usize, in_lane: bool) -> Result<()> {
        if in_lane && !matches!(self.links[peer].wire, Wire::Rings { .. }) {
            return refuse("its message is said to be where there is no lane");
        }
        self.links[peer].inflow = Inflow::Body { sink, got: 0, len, in_lane };
        if len == 0 { self.finish(peer) } else { Ok(()) }
    }

    fn on_eager(
        &mut self,
        peer: Rank,
        (tag, dtype): (u32, DataType),
        len: u64,
        in_lane: bool,
    ) -> Result<()> {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let cost = Limits::cost(len);
        let Limits { eager_bytes, held_bytes } = self.limits;
        let link = &mut self.links[peer];
        if len > eager_bytes || link.held + link.owed + cost > held_bytes {
            return refuse("it sends more than may be held for it");
        }
        link.held += cost;
        let mut message = Message { from: peer, tag, dtype, len, body: Body::Held(Vec::new()) };
        let Some(receive) = self.take_posted(&message) else {
            message.body = Body::Held(hold(len)?);
            self.buffered += len;
            return self.expect_body(peer, Sink::Held(message), len, in_lane);
        };
        if let Some(receiving) = self.receives.get_mut(&receive) {
            receiving.stage = ReceiveStage::Filling { from: peer, tag, len };
        }
        self.pay_back(peer, cost);
        self.expect_body(peer, Sink::Receive(receive), len, in_lane)
    }

    fn on_offer(
        &mut self,
        peer: Rank,
        (tag, dtype): (u32, DataType),
        (number, len): (u64, u64),
        lent: Option<Lent>,
        awaited: bool,
    ) -> Result<()> {
        let Ok(len) = usize::try_from(len) else { return refuse("it offers an endless message") };
        let arrival = self.fresh();
        let link = &mut self.links[peer];
        if number <= link.last_offer || link.offers.len() >= MAX_OUTSTANDING {
            return refuse("it offers more messages than it may, or one twice");
        }
        link.last_offer = number;
        let (receive, attempt, got, back) = (None, 0, 0, Back::Read);
        let offer = Offer { arrival, tag, dtype, len, lent, awaited, attempt, receive, got, back };
        link.offers.insert(number, offer);
        self.arrived(arrival, Message { from: peer, tag, dtype, len, body: Body::Offered(number) });
        Ok(())
    }

    fn on_pull(&mut self, peer: Rank, number: u64, attempt: u32) -> Result<()> {
        let is_known = self.was_given(number);
        let Some(sending) = self.sends.get_mut(&number) else {
            // It has been withdrawn meanwhile.
            return if is_known { Ok(()) } else { refuse("it asks for a message that never was") };
        };
        let is_newer = match sending.stage {
            SendStage::Offered => true,
            SendStage::Pulled { attempt: before, .. } => attempt > before,
            SendStage::Whole | SendStage::Own { .. } => false,
        };
        if sending.message.to != peer || !is_newer {
            return refuse("it asks for a message that it was not offered");
        }
        if let Some(place) = sending.place {
            // Whoever has waited for the answer too long has begun to read.
            if !self.domain.region().desk(self.domain.rank()).take_back(place, number) {
                return Ok(());
            }
            sending.place = None;
            self.places.give_back(place);
        }
        // Pieces of an earlier attempt do not count any more.
        sending.stage = SendStage::Pulled { attempt, sent: 0, begun: false };
        let link = &mut self.links[peer];
        link.bulk.retain(|&other| other != number);
        link.bulk.push_back(number);
        self.has_pending(peer);
        Ok(())
    }

    fn on_piece(
        &mut self,
        peer: Rank,
        (number, attempt): (u64, u32),
        (offset, len): (u64, u64),
        in_lane: bool,
    ) -> Result<()> {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if len > MAX_PIECE {
            return refuse("a piece of its message is too long");
        }

        let Some(offer) = self.links[peer].offers.get(&number) else {
            return refuse("it sends a piece of a message that nobody asked for");
        };
        let receive = match offer.receive {
            Some(receive) if offer.attempt == attempt => receive,
            _ if attempt <= offer.attempt => {
                return self.expect_body(peer, Sink::Nowhere, len, in_lane);
            }
            _ => return refuse("it sends a piece of a message that nobody asked for"),
        };
        let fits = offer.got as u64 == offset && len <= offer.len - offer.got;
        if !fits || offer.lent.is_some() && self.is_reading(peer, number) {
            return refuse("it sends a piece of a message out of its place");
        }
        if let Some(receiving) = self.receives.get_mut(&receive) {
            receiving.stage = ReceiveStage::Begun { from: peer, number };
        }
        self.expect_body(peer, Sink::Piece(number), len, in_lane)
    }

    fn on_taken(&mut self, peer: Rank, number: u64) -> Result<()> {
        let is_known = self.was_given(number);
        let Some(sending) = self.sends.get(&number) else {
            return if is_known { Ok(()) } else { refuse("it took a message that never was") };
        };
        let whole = sending.message.bytes.len();
        let is_possible = match sending.stage {
            SendStage::Offered => sending.place.is_some(),
            SendStage::Pulled { sent, begun, .. } => begun && sent == whole,
            SendStage::Whole | SendStage::Own { .. } => false,
        };
        if sending.message.to != peer || !is_possible || self.links[peer].is_sending(number) {
            return refuse("it took a message that it cannot have");
        }
        let delivery = Delivery { peer, tag: sending.message.tag, bytes: whole };
        self.links[peer].unqueue(number);
        self.end_send(number, Ok(delivery));
        Ok(())
    }

    pub(super) fn on_credit(&mut self, peer: Rank, bytes: u64) -> Result<()> {
        let link = &mut self.links[peer];
        let left = usize::try_from(bytes).ok().and_then(|bytes| link.used.checked_sub(bytes));
        let Some(left) = left else { return refuse("it gives back more than it was sent") };
        link.used = left;
        Ok(())
    }

    fn on_withdraw(&mut self, peer: Rank, number: u64) -> Result<()> {
        let link = &mut self.links[peer];
        if number > link.last_offer {
            return refuse("it withdraws what it never offered");
        }
        // Where it was lent, this rank may have found that out already.
        let Some(offer) = link.offers.get(&number) else { return Ok(()) };
        match offer.receive {
            None => {
                let arrival = offer.arrival;
                link.offers.remove(&number);
                self.forget_message(arrival);
            }
            Some(receive) => {
                if offer.got > 0 || !self.stop_reading(peer, number) {
                    return refuse("it withdraws what it is sending");
                }
                let link = &mut self.links[peer];
                link.offers.remove(&number);
                // A peer that offers and withdraws and does not listen gets no queue of questions
                // by that.
                let is_about_it = |item: &Item| matches!(item, Item::Say(Frame::Pull { number: asked, .. }) if *asked == number);
                link.outbox.retain(|item| !is_about_it(item));
                self.place(receive);
            }
        }
        Ok(())
    }

    /// A body is there.
    fn finish(&mut self, peer: Rank) -> Result<()> {
        let link = &mut self.links[peer];
        let Inflow::Body { sink, .. } = std::mem::replace(&mut link.inflow, Inflow::START) else {
            return Ok(());
        };
        match sink {
            Sink::Nowhere => {}
            Sink::Held(message) => {
                let arrival = self.fresh();
                self.arrived(arrival, message);
            }
            Sink::Receive(receive) => {
                if let Some(receiving) = self.receives.get(&receive)
                    && let ReceiveStage::Filling { from, tag, len } = receiving.stage
                {
                    self.end_receive(receive, Ok(Delivery { peer: from, tag, bytes: len }));
                }
            }
            Sink::Piece(number) => {
                if link.offers.get(&number).is_some_and(|offer| offer.got == offer.len) {
                    self.has_taken(peer, number);
                }
            }
        }
        Ok(())
    }
}
