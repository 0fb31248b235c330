//! The receiving side: takes messages and control frames from the streams. Every value from a peer
//! is checked before it has an effect. An invalid value fails the group with an error that names
//! the peer.

use super::frame::{ExposedBuffer, HEADER_BYTES, MAX_FRAGMENT, MessageFrame};
use super::limits::{MAX_OUTSTANDING, MatchingLimits};
use super::link::{BackHalf, BodyDestination, InboundFrame, PeerLink, QueuedItem, ReceivedRts};
use super::outstanding::{ReceiveStage, SendStage, allocate_zeroed};
use super::peer_streams::PeerStreams;
use super::state::MatchingState;
use super::unexpected::{MessageBody, UnexpectedMessage};
use crate::base::buffer::Dst;
use crate::base::dtype::DataType;
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use crate::transport::Delivery;

/// The number of bytes after which a stream gives other streams a chance.
const DRAIN_LIMIT_BYTES: usize = 256 << 10;

/// Returns the error for an invalid frame.
pub(super) fn protocol_error<T>(reason: &str) -> Result<T> {
    Err(Error::internal(reason))
}

impl MatchingState {
    /// Takes the received bytes of a peer. Returns true if more bytes may be available.
    pub(super) fn drain_stream(&mut self, peer: Rank) -> bool {
        let PeerLink { close_error: closed, receive_close_error: in_closed, .. } =
            &self.links[peer];
        if closed.is_some() || in_closed.is_some() || self.failure.is_some() {
            return false;
        }
        let mut taken = 0;
        let outcome = loop {
            match self.take_next(peer) {
                Ok(0) => break Ok(false),
                Ok(received) => {
                    taken += received;
                    // Returns room early, so that a sender that waits for room can continue.
                    self.links[peer].streams.release_received_lazily(self.domain.as_ref());
                }
                Err(error) => break Err(error),
            }
            if taken >= DRAIN_LIMIT_BYTES {
                break Ok(self.links[peer].streams.may_have_more(self.domain.as_ref()));
            }
        };
        self.moved_bytes += taken as u64;
        if taken > 0 {
            self.links[peer].streams.release_received(self.domain.as_ref());
        }
        outcome.unwrap_or_else(|error| {
            self.on_receive_error(peer, error);
            false
        })
    }

    /// Takes the next bytes of the current frame. Returns their number.
    fn take_next(&mut self, peer: Rank) -> Result<usize> {
        let PeerLink { streams, inbound_frame, received_rts, .. } = &mut self.links[peer];
        let (into, body_is_bulk) = match inbound_frame {
            InboundFrame::Header { bytes, received: have } => {
                (Dst::from(&mut bytes[*have..]), None)
            }
            InboundFrame::Body { destination, received, len, is_bulk } => {
                let rest = *len - *received;
                let into = match destination {
                    BodyDestination::Unexpected(UnexpectedMessage {
                        body: MessageBody::Buffered(bytes),
                        ..
                    }) => Some(Dst::from(&mut bytes[*received..])),
                    BodyDestination::Receive(receive) => {
                        let receiving = self.receives.get_mut(receive);
                        receiving.map(|receiving| receiving.buffer_range(*received, rest))
                    }
                    BodyDestination::Fragment(number) => received_rts.get(number).and_then(|rts| {
                        let receiving = self.receives.get_mut(&rts.receive?)?;
                        Some(receiving.buffer_range(rts.received, rest))
                    }),
                    BodyDestination::Unexpected(_) | BodyDestination::Discard => None,
                };
                match into {
                    Some(into) => (into, Some(*is_bulk)),
                    None => return self.discard_body(peer, rest),
                }
            }
        };
        let taken = match body_is_bulk {
            None => streams.receive(self.domain.as_ref(), into)?,
            Some(is_bulk) => streams.receive_body(self.domain.as_ref(), into, is_bulk)?,
        };
        let is_whole = taken == into.len();
        match inbound_frame {
            InboundFrame::Header { received: have, .. } => *have += taken,
            InboundFrame::Body { destination, received, .. } => {
                *received += taken;
                if let BodyDestination::Fragment(number) = destination
                    && let Some(rts) = received_rts.get_mut(number)
                {
                    rts.received += taken;
                }
            }
        }
        match (body_is_bulk.is_none(), is_whole) {
            (_, false) => {}
            (true, true) => self.on_header(peer)?,
            (false, true) => self.on_body(peer)?,
        }
        Ok(taken)
    }

    /// Reads and drops bytes of a body without a destination.
    fn discard_body(&mut self, peer: Rank, remaining: usize) -> Result<usize> {
        let mut bytes = [0; 4096];
        let len = remaining.min(bytes.len());
        let link = &mut self.links[peer];
        let InboundFrame::Body { received, is_bulk, .. } = &mut link.inbound_frame else {
            return Ok(0);
        };
        let into = Dst::from(&mut bytes[..len]);
        let taken = link.streams.receive_body(self.domain.as_ref(), into, *is_bulk)?;
        *received += taken;
        if taken == remaining {
            self.on_body(peer)?;
        }
        Ok(taken)
    }

    /// Handles a complete header.
    fn on_header(&mut self, peer: Rank) -> Result<()> {
        let link = &mut self.links[peer];
        let InboundFrame::Header { bytes, .. } =
            std::mem::replace(&mut link.inbound_frame, InboundFrame::AWAITING_HEADER)
        else {
            return Ok(());
        };
        let bytes: [u8; HEADER_BYTES] = bytes;
        let Some(frame) = MessageFrame::decode(&bytes) else {
            return protocol_error("it sent an invalid frame");
        };
        match frame {
            MessageFrame::Eager { tag, dtype, len, is_bulk } => {
                self.on_eager(peer, (tag, dtype), len, is_bulk)
            }
            MessageFrame::Rts { tag, dtype, number, len, exposed, is_awaited } => {
                self.on_rts(peer, (tag, dtype), (number, len), exposed, is_awaited)
            }
            MessageFrame::Cts { number, attempt } => self.on_cts(peer, number, attempt),
            MessageFrame::Fragment { number, attempt, offset, len, is_bulk } => {
                self.on_fragment(peer, (number, attempt), (offset, len), is_bulk)
            }
            MessageFrame::Fin { number } => self.on_fin(peer, number),
            MessageFrame::Credit { bytes } => self.on_credit(peer, bytes),
            MessageFrame::CancelRts { number } => self.on_cancel_rts(peer, number),
            MessageFrame::SplitPut { number, address, region_address: region } => {
                self.on_split_put(peer, number, (address, region))
            }
            MessageFrame::PutDone { number, len } => self.on_put_done(peer, number, len),
        }
    }

    fn expect_body(
        &mut self,
        peer: Rank,
        destination: BodyDestination,
        len: usize,
        is_bulk: bool,
    ) -> Result<()> {
        if is_bulk && !matches!(self.links[peer].streams, PeerStreams::Rings { .. }) {
            return protocol_error("it sent a message in a bulk ring that does not exist");
        }
        self.links[peer].inbound_frame =
            InboundFrame::Body { destination, received: 0, len, is_bulk };
        if len == 0 { self.on_body(peer) } else { Ok(()) }
    }

    fn on_eager(
        &mut self,
        peer: Rank,
        (tag, dtype): (u32, DataType),
        len: u64,
        is_bulk: bool,
    ) -> Result<()> {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let cost = MatchingLimits::credit_cost(len);
        let MatchingLimits { eager_bytes, held_bytes } = self.limits;
        let link = &mut self.links[peer];
        if len > eager_bytes || link.held_cost + link.owed_credit + cost > held_bytes {
            return protocol_error("it sent more eager bytes than its credit allows");
        }
        link.held_cost += cost;
        let mut message = UnexpectedMessage {
            from: peer,
            tag,
            dtype,
            len,
            body: MessageBody::Buffered(Vec::new()),
        };
        let Some(receive) = self.take_matching_receive(&message) else {
            message.body = MessageBody::Buffered(allocate_zeroed(len)?);
            self.buffered_bytes += len;
            return self.expect_body(peer, BodyDestination::Unexpected(message), len, is_bulk);
        };
        if let Some(receiving) = self.receives.get_mut(&receive) {
            receiving.stage = ReceiveStage::ReceivingEager { from: peer, tag, len };
        }
        self.return_credit(peer, cost);
        self.expect_body(peer, BodyDestination::Receive(receive), len, is_bulk)
    }

    fn on_rts(
        &mut self,
        peer: Rank,
        (tag, dtype): (u32, DataType),
        (number, len): (u64, u64),
        exposed: Option<ExposedBuffer>,
        is_awaited: bool,
    ) -> Result<()> {
        let Ok(len) = usize::try_from(len) else {
            return protocol_error("it sent an RTS with an invalid length");
        };
        let arrival = self.next_number();
        let link = &mut self.links[peer];
        if number <= link.last_rts || link.received_rts.len() >= MAX_OUTSTANDING {
            return protocol_error("it sent too many RTS frames, or one twice");
        }
        link.last_rts = number;
        let (receive, attempt, received, back_half) = (None, 0, 0, BackHalf::GetAll);
        let rts = ReceivedRts {
            arrival,
            tag,
            dtype,
            len,
            exposed,
            is_awaited,
            attempt,
            receive,
            received,
            back_half,
        };
        link.received_rts.insert(number, rts);
        self.on_message_arrived(
            arrival,
            UnexpectedMessage { from: peer, tag, dtype, len, body: MessageBody::AtSender(number) },
        );
        Ok(())
    }

    fn on_cts(&mut self, peer: Rank, number: u64, attempt: u32) -> Result<()> {
        let is_known = self.was_issued(number);
        let Some(sending) = self.sends.get_mut(&number) else {
            // The send has expired, and its RTS was cancelled in the meantime.
            return if is_known {
                Ok(())
            } else {
                protocol_error("it sent a CTS for an unknown message")
            };
        };
        let is_newer = match sending.stage {
            SendStage::RtsSent => true,
            SendStage::SendingFragments { attempt: before, .. } => attempt > before,
            SendStage::Eager | SendStage::ToSelf { .. } => false,
        };
        if sending.message.to != peer || !is_newer {
            return protocol_error("it sent a CTS without an RTS");
        }
        if let Some(slot) = sending.exposure_slot {
            // The receiver's answer timeout has passed, and the receiver has begun to read the
            // buffer.
            if !self.domain.region().exposure_table(self.domain.rank()).withdraw(slot, number) {
                return Ok(());
            }
            sending.exposure_slot = None;
            self.free_exposure_slots.release(slot);
        }
        // Fragments of an earlier attempt no longer count.
        sending.stage = SendStage::SendingFragments { attempt, sent: 0, has_begun: false };
        let link = &mut self.links[peer];
        link.fragment_queue.retain(|&other| other != number);
        link.fragment_queue.push_back(number);
        self.mark_pending(peer);
        Ok(())
    }

    fn on_fragment(
        &mut self,
        peer: Rank,
        (number, attempt): (u64, u32),
        (offset, len): (u64, u64),
        is_bulk: bool,
    ) -> Result<()> {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if len > MAX_FRAGMENT {
            return protocol_error("it sent a fragment that is too long");
        }

        let Some(rts) = self.links[peer].received_rts.get(&number) else {
            return protocol_error("it sent a fragment without a CTS");
        };
        let receive = match rts.receive {
            Some(receive) if rts.attempt == attempt => receive,
            _ if attempt <= rts.attempt => {
                return self.expect_body(peer, BodyDestination::Discard, len, is_bulk);
            }
            _ => return protocol_error("it sent a fragment without a CTS"),
        };
        let fits = rts.received as u64 == offset && len <= rts.len - rts.received;
        if !fits || rts.exposed.is_some() && self.has_active_get(peer, number) {
            return protocol_error("it sent a fragment at the wrong offset");
        }
        if let Some(receiving) = self.receives.get_mut(&receive) {
            receiving.stage = ReceiveStage::Transferring { from: peer, number };
        }
        self.expect_body(peer, BodyDestination::Fragment(number), len, is_bulk)
    }

    fn on_fin(&mut self, peer: Rank, number: u64) -> Result<()> {
        let is_known = self.was_issued(number);
        let Some(sending) = self.sends.get(&number) else {
            return if is_known {
                Ok(())
            } else {
                protocol_error("it sent a FIN for an unknown message")
            };
        };
        let whole = sending.message.bytes.len();
        let is_possible = match sending.stage {
            SendStage::RtsSent => sending.exposure_slot.is_some(),
            SendStage::SendingFragments { sent, has_begun, .. } => has_begun && sent == whole,
            SendStage::Eager | SendStage::ToSelf { .. } => false,
        };
        if sending.message.to != peer || !is_possible || self.links[peer].is_sending(number) {
            return protocol_error("it sent a FIN for a message that is not complete");
        }
        let delivery = Delivery { peer, tag: sending.message.tag, bytes: whole };
        self.links[peer].dequeue_send(number);
        self.complete_send(number, Ok(delivery));
        Ok(())
    }

    pub(super) fn on_credit(&mut self, peer: Rank, bytes: u64) -> Result<()> {
        let link = &mut self.links[peer];
        let left =
            usize::try_from(bytes).ok().and_then(|bytes| link.used_credit.checked_sub(bytes));
        let Some(left) = left else {
            return protocol_error("it returned more credit than this rank used");
        };
        link.used_credit = left;
        Ok(())
    }

    fn on_cancel_rts(&mut self, peer: Rank, number: u64) -> Result<()> {
        let link = &mut self.links[peer];
        if number > link.last_rts {
            return protocol_error("it cancelled an RTS that it did not send");
        }
        // If the buffer was exposed, this rank may already have found it withdrawn.
        let Some(rts) = link.received_rts.get(&number) else { return Ok(()) };
        match rts.receive {
            None => {
                let arrival = rts.arrival;
                link.received_rts.remove(&number);
                self.discard_message(arrival);
            }
            Some(receive) => {
                if rts.received > 0 || !self.cancel_get(peer, number) {
                    return protocol_error("it cancelled the RTS of a message that it is sending");
                }
                let link = &mut self.links[peer];
                link.received_rts.remove(&number);
                // Remove the pending CTS. Otherwise a peer that sends and cancels RTS frames
                // without reading its stream would grow this queue.
                let is_about_it = |item: &QueuedItem| matches!(item, QueuedItem::Control(MessageFrame::Cts { number: asked, .. }) if *asked == number);
                link.send_queue.retain(|item| !is_about_it(item));
                self.match_receive(receive);
            }
        }
        Ok(())
    }

    /// Handles a complete body.
    fn on_body(&mut self, peer: Rank) -> Result<()> {
        let link = &mut self.links[peer];
        let InboundFrame::Body { destination, .. } =
            std::mem::replace(&mut link.inbound_frame, InboundFrame::AWAITING_HEADER)
        else {
            return Ok(());
        };
        match destination {
            BodyDestination::Discard => {}
            BodyDestination::Unexpected(message) => {
                let arrival = self.next_number();
                self.on_message_arrived(arrival, message);
            }
            BodyDestination::Receive(receive) => {
                if let Some(receiving) = self.receives.get(&receive)
                    && let ReceiveStage::ReceivingEager { from, tag, len } = receiving.stage
                {
                    self.complete_receive(receive, Ok(Delivery { peer: from, tag, bytes: len }));
                }
            }
            BodyDestination::Fragment(number) => {
                if link.received_rts.get(&number).is_some_and(|rts| rts.received == rts.len) {
                    self.finish_rendezvous(peer, number);
                }
            }
        }
        Ok(())
    }
}
