//! Putting messages and answers into the streams.

use super::desk::PLACES;
use super::frame::{Frame, Lent};
use super::limits::Limits;
use super::link::{Current, Item, Link, Load};
use super::outstanding::{Ended, SendStage};
use super::state::State;
use super::wire::Wire;
use crate::base::buffer::Src;
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use crate::transport::{Completion, Delivery, Outgoing};
use std::sync::Arc;

impl State {
    /// Sends a message that the receiver will hold if it must: at once, where there is room.
    pub(super) fn send_whole(&mut self, message: Outgoing, done: Arc<dyn Completion>) {
        let Outgoing { to, tag, dtype, bytes, .. } = message;
        self.links[to].used += Limits::cost(bytes.len());
        if !self.links[to].is_idle() || self.links[to].is_full {
            let number = self.keep(message, done, SendStage::Whole);
            self.queue(to, Item::Whole(number));
            return self.put(to);
        }
        let in_lane = self.goes_in_lane(to, bytes.len());
        let head = Frame::Eager { tag, dtype, len: bytes.len() as u64, in_lane }.encode();
        let wire = &mut self.links[to].wire;
        let outcome = wire.send_body(self.domain.as_ref(), [Src::from(&head[..]), bytes], in_lane);
        wire.flush(self.domain.as_ref());
        let written = match outcome {
            Ok(written) => written,
            Err(error) => {
                self.keep(message, done, SendStage::Whole);
                return self.broken_out(to, error);
            }
        };
        if written == head.len() + bytes.len() {
            let delivery = Delivery { peer: to, tag, bytes: bytes.len() };
            self.ended.push(Ended::new(done, Ok(delivery)));
            return;
        }
        let number = self.keep(message, done, SendStage::Whole);
        let body = Load::Whole { number, in_lane };
        self.links[to].current = Some(Current { head, body, written });
        self.has_pending(to);
        self.put(to);
    }

    /// Offers a message, whose bytes the receiver asks for or reads where they are.
    pub(super) fn offer(&mut self, message: Outgoing, done: Arc<dyn Completion>) {
        let to = message.to;
        let number = self.keep(message, done, SendStage::Offered);
        if matches!(self.links[to].wire, Wire::Rings { .. })
            && !message.bytes.is_empty()
            && let Some(place) = self.places.take()
        {
            debug_assert!(place < PLACES);
            self.desk().lend(place, number);
            self.sends.get_mut(&number).into_iter().for_each(|it| it.place = Some(place));
        }
        self.queue(to, Item::Offer(number));
        self.put(to);
    }

    /// Puts what waits for the streams into them, as far as goes.
    #[inline]
    pub(super) fn put_all(&mut self) {
        if !self.pending.is_empty() {
            self.put_pending();
        }
    }

    fn put_pending(&mut self) {
        for peer in std::mem::take(&mut self.pending) {
            self.links[peer].is_pending = false;
            self.put(peer);
        }
    }

    /// Puts what waits for one stream into it, as far as goes; what is left stays on the list.
    pub(super) fn put(&mut self, peer: Rank) {
        if !self.links[peer].is_open() {
            return;
        }
        if let Err(error) = self.try_put(peer) {
            self.broken_out(peer, error);
        } else if !self.links[peer].is_idle() {
            self.has_pending(peer);
        }
    }

    fn try_put(&mut self, peer: Rank) -> Result<()> {
        if self.links[peer].is_full {
            return Ok(());
        }
        let outcome = loop {
            if self.links[peer].current.is_none() && !self.next_load(peer) {
                break Ok(());
            }
            match self.put_current(peer) {
                // A peer that takes one piece while the next is put halves the time of both.
                Ok(true) => self.links[peer].wire.flush_piece(self.domain.as_ref()),
                Ok(false) => {
                    let link = &mut self.links[peer];
                    link.wire.flush(self.domain.as_ref());
                    let in_lane = link.current.as_ref().is_some_and(Current::waits_for_lane);
                    match link.wire.has_room_after_all(self.domain.as_ref(), in_lane) {
                        Ok(true) => {}
                        Ok(false) => {
                            // The endpoint says when it goes on.
                            link.is_full = matches!(link.wire, Wire::Streams { .. });
                            break Ok(());
                        }
                        Err(error) => break Err(error),
                    }
                }
                Err(error) => break Err(error),
            }
        };
        self.links[peer].wire.flush(self.domain.as_ref());
        outcome
    }

    /// Chooses what is next; false where there is nothing.
    fn next_load(&mut self, peer: Rank) -> bool {
        while let Some(item) = self.links[peer].outbox.pop_front() {
            let (frame, body) = match item {
                Item::Say(frame) => (frame, Load::Nothing(None)),
                Item::Taken { number, receive } => (Frame::Taken { number }, Load::Taken(receive)),
                Item::Whole(number) => {
                    let Some(sending) = self.sends.get(&number) else { continue };
                    let Outgoing { tag, dtype, bytes, .. } = sending.message;
                    let in_lane = self.goes_in_lane(peer, bytes.len());
                    let frame = Frame::Eager { tag, dtype, len: bytes.len() as u64, in_lane };
                    (frame, Load::Whole { number, in_lane })
                }
                Item::Offer(number) => {
                    let Some(sending) = self.sends.get(&number) else { continue };
                    let Outgoing { tag, dtype, bytes, .. } = sending.message;
                    let address = u64::try_from(bytes.as_ptr().addr()).unwrap_or(0);
                    let lent = sending.place.map(|place| Lent { address, place });
                    let (len, awaited) = (bytes.len() as u64, sending.done.is_awaited());
                    let frame = Frame::Offer { tag, dtype, number, len, lent, awaited };
                    (frame, Load::Nothing(Some(number)))
                }
            };
            self.load(peer, &frame, body);
            return true;
        }
        self.next_piece(peer)
    }

    fn next_piece(&mut self, peer: Rank) -> bool {
        while let Some(number) = self.links[peer].bulk.pop_front() {
            let Some(sending) = self.sends.get(&number) else { continue };
            let SendStage::Pulled { attempt, sent, .. } = sending.stage else { continue };
            let rest = sending.message.bytes.len() - sent;
            let in_lane = self.has_lane_for(peer);
            let len = rest.min(self.links[peer].wire.longest_piece(in_lane));
            let frame =
                Frame::Piece { number, attempt, offset: sent as u64, len: len as u64, in_lane };
            self.load(peer, &frame, Load::Piece { number, attempt, offset: sent, len, in_lane });
            return true;
        }
        false
    }

    /// Whether a whole message goes into the lane: where that is better for it, and free.
    pub(super) fn goes_in_lane(&mut self, peer: Rank, len: usize) -> bool {
        len > self.region().longest_in_ring() && self.has_lane_for(peer)
    }

    /// Whether what goes to a peer may go into the lane: nothing in it is for another that has not
    /// read it, who may never do.
    fn has_lane_for(&mut self, peer: Rank) -> bool {
        if !matches!(self.links[peer].wire, Wire::Rings { .. }) {
            return false;
        }
        if let Some(user) = self.lane_user.filter(|&user| user != peer)
            && self.links[user].uses_lane(self.domain.as_ref())
        {
            return false;
        }
        self.lane_user = Some(peer);
        true
    }

    fn load(&mut self, peer: Rank, frame: &Frame, body: Load) {
        self.links[peer].current = Some(Current { head: frame.encode(), body, written: 0 });
    }

    /// Puts what is current into the stream; true once all of it is there.
    fn put_current(&mut self, peer: Rank) -> Result<bool> {
        let Link { current: Some(current), wire, .. } = &mut self.links[peer] else {
            return Ok(true);
        };
        let bytes = match current.body {
            Load::Nothing(_) | Load::Taken(_) => Some(Src::empty()),
            Load::Whole { number, .. } => {
                self.sends.get(&number).map(|sending| sending.message.bytes)
            }
            Load::Piece { number, offset, len, .. } => {
                self.sends.get(&number).map(|sending| sending.message.bytes.slice(offset, len))
            }
        };
        // The bytes of a send are there as long as any of them is on its way.
        let bytes = bytes.ok_or_else(|| Error::internal("a message ended while it was sent"))?;
        let head = current.head.len();
        let skip = current.written.saturating_sub(head).min(bytes.len());
        let start = current.written.min(head);
        let parts = [Src::from(&current.head[start..]), bytes.slice(skip, bytes.len() - skip)];
        let sent = wire.send_body(self.domain.as_ref(), parts, current.body.in_lane())?;
        self.moved += sent as u64;
        current.written += sent;
        let (body, written) = (current.body, current.written);
        if written > 0
            && let Load::Piece { number, attempt: of, .. } = body
            && let Some(sending) = self.sends.get_mut(&number)
            && let SendStage::Pulled { attempt, begun, .. } = &mut sending.stage
            && *attempt == of
        {
            *begun = true;
        }
        if written < head + bytes.len() {
            return Ok(false);
        }
        self.links[peer].current = None;
        self.is_in_the_stream(peer, body);
        Ok(true)
    }

    /// A frame with its body is in the stream.
    fn is_in_the_stream(&mut self, peer: Rank, body: Load) {
        match body {
            Load::Nothing(_) => {}
            Load::Taken(receive) => self.end_delivered(receive),
            Load::Whole { number, .. } => {
                if let Some(sending) = self.sends.get(&number) {
                    let Outgoing { to, tag, bytes, .. } = sending.message;
                    self.end_send(number, Ok(Delivery { peer: to, tag, bytes: bytes.len() }));
                }
            }
            Load::Piece { number, attempt: of, len, .. } => {
                if let Some(sending) = self.sends.get_mut(&number)
                    && let SendStage::Pulled { attempt, sent, .. } = &mut sending.stage
                    && *attempt == of
                {
                    *sent += len;
                    if *sent < sending.message.bytes.len() {
                        self.links[peer].bulk.push_back(number);
                    }
                }
            }
        }
    }
}
