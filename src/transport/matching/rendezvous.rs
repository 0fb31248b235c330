//! The rendezvous of announced messages: their frames, and the choice of how their bytes move.
//! There are two basic ways. A third way, in which both ranks copy, is in
//! [`super::split_transfer`].
//!
//! ```text
//!           by fragments                              by CMA (super::gets)
//! sender                     receiver       sender                     receiver
//!    | ---- RTS 5 ------------> |              | ---- RTS 5, address ---> |
//!    | <--- CTS 5, attempt 1 -- |              |                          | reads the memory
//!    | ---- Fragment 5 -------> |              |                          | of the sender
//!    | ---- Fragment 5 -------> |              |                          |
//!    | <--- FIN 5 ------------- |              | <--- FIN 5 ------------- |
//! ```
//!
//! 5 is the number of the message. The receiver answers an RTS when a receive has matched it. The
//! sender may cancel an RTS before that (CancelRts). If the receive expires after a CTS, the next
//! receive sends a CTS with the next attempt, and the fragments of the earlier attempt are
//! discarded.

use super::frame::{MAX_FRAGMENT, MessageFrame};
use super::gets::{ExposedMessage, GetPlan, GetStep};
use super::inbound::protocol_error;
use super::link::{BodyDestination, QueuedItem};
use super::outstanding::{OutstandingReceive, ReceiveStage, SendStage};
use super::rts_table::{BackHalf, ReceivedRts};
use super::state::MatchingState;
use crate::base::error::Result;
use crate::base::ids::Rank;
use crate::transport::Delivery;

impl MatchingState {
    pub(super) fn on_rts(&mut self, peer: Rank, frame: MessageFrame) -> Result<()> {
        let MessageFrame::Rts { tag, dtype, number, len, exposed, is_awaited } = frame else {
            return Ok(());
        };
        let Ok(len) = usize::try_from(len) else {
            return protocol_error("it sent an RTS with an invalid length");
        };
        let arrival = self.requests.next_number();
        let rts = ReceivedRts {
            arrival,
            tag,
            dtype,
            len,
            exposed,
            is_awaited,
            attempt: 0,
            receive: None,
            received: 0,
            back_half: BackHalf::GetAll,
        };
        let message = rts.to_unexpected(peer, number);
        if !self.rts.insert(peer, number, rts) {
            return protocol_error("it sent too many RTS frames, or one twice");
        }
        self.on_message_arrived(arrival, message);
        Ok(())
    }

    /// Accepts an RTS for a receive, and selects how the bytes move. Returns false if the message
    /// is no longer available, so that the receive must look for another message.
    pub(super) fn accept_rts(&mut self, from: Rank, number: u64, receive: u64) -> bool {
        let link = self.peers.link(from);
        // A peer that has left can no longer be asked for the message.
        if link.send_close_error.is_some() {
            return false;
        }
        let ring_rank = link.ring_rank();
        let Some(rts) = self.rts.get_mut(from, number) else { return false };
        rts.receive = Some(receive);
        let (exposed, is_awaited) = (rts.exposed.filter(|_| rts.attempt == 0), rts.is_awaited);
        self.requests.set_receive_stage(receive, ReceiveStage::Accepted { from, number });
        let Some((exposed, local)) =
            exposed.zip(ring_rank).filter(|&(_, local)| self.gets.can_read(local))
        else {
            self.send_cts(from, number);
            return true;
        };
        let plan = self.choose_get_plan(receive, local, exposed.address, is_awaited);
        self.gets.add(ExposedMessage { peer: from, local, number, exposed }, plan);
        if plan == GetPlan::AskFirst {
            self.send_cts(from, number);
        }
        true
    }

    /// Selects how an exposed message moves. If callers on both ranks only wait for it, both work:
    /// they copy one half each, or the message comes in fragments. Fragments are faster for short
    /// messages, and for a pair of addresses at which the kernel copies slowly
    /// ([`super::puts::Puts::can_split`]).
    fn choose_get_plan(
        &self,
        receive: u64,
        sender: Rank,
        source: u64,
        is_awaited: bool,
    ) -> GetPlan {
        if !is_awaited
            || !self.requests.is_only_waiting_for(receive)
            || !self.gets.is_polling(sender)
        {
            return GetPlan::GetAll;
        }
        let can_split = |it: &OutstandingReceive| self.puts.can_split(it, source);
        if self.requests.receive(receive).is_some_and(can_split) {
            GetPlan::Split
        } else {
            GetPlan::AskFirst
        }
    }

    /// Requests the fragments of a message by a CTS.
    fn send_cts(&mut self, from: Rank, number: u64) {
        let Some(rts) = self.rts.get_mut(from, number) else { return };
        rts.attempt += 1;
        rts.received = 0;
        let attempt = rts.attempt;
        self.peers.queue_control(from, MessageFrame::Cts { number, attempt });
    }

    /// Makes one step of one get ([`super::gets::Gets::step`]).
    pub(super) fn progress_gets(&mut self) {
        let step = self.gets.step(&mut self.rts, &mut self.requests);
        self.finish_get_step(step);
    }

    /// Does what the result of a step of a get requires.
    pub(super) fn finish_get_step(&mut self, step: GetStep) {
        match step {
            GetStep::Pending => {}
            GetStep::Withdrawn { receive } => self.match_receive(receive),
            GetStep::AskForPut { peer, frame } => {
                self.peers.queue_control(peer, frame);
                self.flush_peer(peer);
                self.progress_gets();
            }
            GetStep::Finished { peer, number } => self.finish_rendezvous(peer, number),
            GetStep::NeedsFragments { peer, number } => self.send_cts(peer, number),
            GetStep::Failed(error) => self.fail(error),
        }
    }

    /// Completes a rendezvous whose message has completely arrived.
    pub(super) fn finish_rendezvous(&mut self, from: Rank, number: u64) {
        let Some(rts) = self.rts.remove(from, number) else { return };
        let delivery = Delivery { peer: from, tag: rts.tag, bytes: rts.len };
        let Some(receive) = rts.receive else { return };
        // The receive completes only when the FIN is in the stream. Its caller may leave the group
        // after that, and the sender needs the FIN.
        self.requests.set_receive_stage(receive, ReceiveStage::Delivered(delivery));
        if self.peers.link(from).is_open() {
            self.peers.queue_item(from, QueuedItem::Fin { number, receive });
        } else {
            self.requests.complete_delivered(receive);
        }
    }

    /// Checks a frame about a send that is not outstanding. Returns `Ok` if the send has completed,
    /// and an error if this rank never posted it.
    pub(super) fn check_issued(&self, number: u64, violation: &str) -> Result<()> {
        if self.requests.was_issued(number) { Ok(()) } else { protocol_error(violation) }
    }

    pub(super) fn on_cts(&mut self, peer: Rank, number: u64, attempt: u32) -> Result<()> {
        let Some(sending) = self.requests.send_mut(number) else {
            // The send has expired: the cancellation of the RTS and this CTS crossed each other.
            return self.check_issued(number, "it sent a CTS for an unknown message");
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
            // The receiver did not wait longer for an answer, and is reading the buffer by CMA. It
            // needs no fragments.
            if !self.exposed.withdraw(slot, number) {
                return Ok(());
            }
            sending.exposure_slot = None;
            self.exposed.release(slot);
        }
        // The receiver discards the fragments of an earlier attempt, so begin with the first byte.
        sending.stage = SendStage::SendingFragments { attempt, sent: 0, has_begun: false };
        self.peers.queue_fragments(peer, number);
        Ok(())
    }

    pub(super) fn on_fragment(&mut self, peer: Rank, frame: MessageFrame) -> Result<()> {
        let MessageFrame::Fragment { number, attempt, offset, len, is_bulk } = frame else {
            return Ok(());
        };
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if len > MAX_FRAGMENT {
            return protocol_error("it sent a fragment that is too long");
        }
        let Some(rts) = self.rts.get(peer, number) else {
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
        if !fits || rts.exposed.is_some() && self.gets.has_get_of(peer, number) {
            return protocol_error("it sent a fragment at the wrong offset");
        }
        self.requests.set_receive_stage(receive, ReceiveStage::Transferring { from: peer, number });
        self.expect_body(peer, BodyDestination::Fragment(number), len, is_bulk)
    }

    pub(super) fn on_fin(&mut self, peer: Rank, number: u64) -> Result<()> {
        let Some(sending) = self.requests.send(number) else {
            return self.check_issued(number, "it sent a FIN for an unknown message");
        };
        let whole = sending.message.bytes.len();
        let is_possible = match sending.stage {
            SendStage::RtsSent => sending.exposure_slot.is_some(),
            SendStage::SendingFragments { sent, has_begun, .. } => has_begun && sent == whole,
            SendStage::Eager | SendStage::ToSelf { .. } => false,
        };
        if sending.message.to != peer || !is_possible || self.peers.link(peer).is_sending(number) {
            return protocol_error("it sent a FIN for a message that is not complete");
        }
        let delivery = Delivery { peer, tag: sending.message.tag, bytes: whole };
        self.peers.dequeue_send(peer, number);
        self.complete_send(number, Ok(delivery));
        Ok(())
    }

    pub(super) fn on_cancel_rts(&mut self, peer: Rank, number: u64) -> Result<()> {
        if !self.rts.has_reached(peer, number) {
            return protocol_error("it cancelled an RTS that it did not send");
        }
        // This rank may already have dropped the RTS, when it found the exposed buffer withdrawn.
        let Some(rts) = self.rts.get(peer, number) else { return Ok(()) };
        let (arrival, receive) = (rts.arrival, rts.receive);
        if receive.is_some() && (rts.received > 0 || !self.gets.cancel(peer, number)) {
            return protocol_error("it cancelled the RTS of a message that it is sending");
        }
        self.rts.remove(peer, number);
        match receive {
            None => self.queues.discard(arrival),
            Some(receive) => {
                self.peers.dequeue_cts(peer, number);
                self.match_receive(receive);
            }
        }
        Ok(())
    }
}
