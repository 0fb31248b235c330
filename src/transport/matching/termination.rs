//! Progress (polling all streams once), and the completion of messages that cannot complete
//! normally: because a deadline has passed, the group has failed, or this rank leaves the group.

use super::frame::MessageFrame;
use super::outstanding::{OutstandingSend, ReceiveStage, SendStage};
use super::requests::RequestId;
use super::state::MatchingState;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, RankFault};
use crate::base::ids::Rank;
use crate::transport::{ReceiveRequest, SendRequest};
use std::time::Instant;

impl MatchingState {
    /// Makes progress, and then completes the messages whose deadlines have passed. In this order,
    /// a message that has already arrived completes successfully.
    pub(super) fn progress_and_expire(&mut self) {
        self.progress();
        self.expire();
        self.flush_all();
    }

    /// Polls all streams, gets and puts once, without waiting.
    pub(super) fn progress(&mut self) {
        if self.failure.is_some() {
            return;
        }
        if let Some(error) = self.domain.failure() {
            return self.fail(error);
        }
        self.has_unread_data = false;
        for index in 0..self.peers.node_peers().len() {
            let peer = self.peers.node_peers()[index];
            self.poll_ring(peer);
        }
        self.poll_endpoint_streams();
        self.gets.check_answers(&self.rts, &self.requests);
        self.progress_gets();
        self.progress_puts();
        self.flush_all();
    }

    /// Returns whether a further poll could make progress immediately.
    pub(super) fn has_runnable_work(&self) -> bool {
        self.failure.is_none()
            && (self.has_unread_data
                || self.gets.has_runnable()
                || self.puts.has_runnable()
                || self.peers.has_ready())
    }

    /// Returns whether there is work that can run now and for which no caller waits.
    pub(super) fn needs_service_progress(&self) -> bool {
        self.failure.is_none()
            && (self.has_unread_data
                || self.gets.has_unawaited(&self.rts, &self.requests)
                || self.puts.has_unawaited(&self.requests)
                || self.peers.has_ready())
    }

    /// Polls the ring of a rank of the same node.
    fn poll_ring(&mut self, peer: Rank) {
        let link = self.peers.link(peer);
        let Some(local) = link.ring_rank().filter(|_| link.close_error.is_none()) else { return };
        // Read the flag before the ring. If the flag is set, all bytes that the peer wrote before
        // it left or died are then visible.
        let has_ended = self.domain.has_ended(local);
        let has_more = self.drain_stream(peer);
        self.has_unread_data |= has_more;
        if has_ended && !has_more && self.failure.is_none() {
            // The peer may have left because the group has failed. The failure was published before
            // the peer left, so it is visible here.
            if let Some(error) = self.domain.failure() {
                return self.fail(error);
            }
            let error = self.domain.death(local).unwrap_or_else(|| self.left_error(peer));
            self.close_link(peer, &error);
        }
    }

    fn left_error(&self, peer: Rank) -> Error {
        let message = format!("{} has left the group", self.peers.name(peer));
        let error = Error::new(ErrorKind::PeerFailed, message).with_culprit(peer);
        error.with_fault(RankFault::Left)
    }

    /// Polls the streams between nodes that may make progress.
    fn poll_endpoint_streams(&mut self) {
        let Some(endpoint) = &self.endpoint else { return };
        for peer in self.peers.take_ready(endpoint.as_ref()) {
            // Read before writing: if the peer has departed, writing fails, but the frames that it
            // sent before may still complete a send.
            if self.drain_stream(peer) {
                self.peers.mark_ready(peer);
            }
            self.flush_peer(peer);
        }
    }

    /// Fails the group, and completes all messages with the reason that the group reports. If the
    /// group had failed before, that is an earlier reason.
    pub(super) fn fail(&mut self, error: Error) {
        self.fail_group(&error);
        let reason = self.domain.failure().unwrap_or(error);
        self.complete_all(&reason);
    }

    /// Fails the group on all nodes. If the group has failed before, the first reason is kept.
    fn fail_group(&self, error: &Error) {
        self.domain.fail(error);
        self.endpoint.iter().for_each(|endpoint| endpoint.fail(error));
    }

    /// Completes all messages with an error. The caller ensures that no peer can read this rank's
    /// buffers successfully any more.
    pub(super) fn complete_all(&mut self, reason: &Error) {
        self.failure = Some(reason.clone());
        self.queues.wake_probes();
        let writer_warning = self.wait_for_writers();
        self.gets.drop_gets(|_| true);
        self.puts.drop_puts(|_| true);
        self.peers.clear();
        self.rts.clear();
        for number in self.requests.sends_where(|_| true) {
            self.complete_send(number, Err(reason.clone()));
        }
        for receive in self.requests.receives_where(|_| true) {
            self.requests.complete_delivered(receive);
            let error = match &writer_warning {
                Some(doubt) => reason.clone().context(doubt.message()),
                None => reason.clone(),
            };
            self.requests.complete_receive(receive, Err(error));
        }
    }

    /// Leaves the group in order, and completes all messages with an error. Withdraws the exposed
    /// buffers. If a peer is reading one of them, or is writing to a receive buffer, fails the
    /// group.
    pub(super) fn leave(&mut self) {
        self.progress();
        if self.failure.is_some() {
            return;
        }
        let is_being_read = |number, sending: &OutstandingSend| {
            sending.exposure_slot.is_some_and(|slot| !self.exposed.withdraw(slot, number))
        };
        let text = "this rank left the group before the message completed";
        let reason = Error::new(ErrorKind::Aborted, text);
        let (rank, name) = (self.peers.rank(), self.peers.name(self.peers.rank()));
        if self.requests.has_send(is_being_read) {
            let what = format!("{name} left the group while a peer read its message");
            self.fail_group(&early_departure_error(what, rank));
        } else if self.rts.has_requested_puts() {
            let what = format!("{name} left the group while a peer wrote a message to it");
            self.fail_group(&early_departure_error(what, rank));
        }
        self.complete_all(&reason);
    }

    /// Releases the streams, so that they end even if other owners keep the engine.
    pub(super) fn detach(&mut self) {
        self.endpoint = None;
        self.peers.detach();
    }

    /// Returns the time at which the next timer expires.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        [self.requests.next_due(), self.peers.next_departure()].into_iter().flatten().min()
    }

    /// Completes the messages whose deadlines have passed, and ends the grace periods that are
    /// over.
    pub(super) fn expire(&mut self) {
        while self.failure.is_none() {
            let (request, departure) = (self.requests.next_due(), self.peers.next_departure());
            if departure.is_some_and(|departure| request.is_none_or(|due| departure < due)) {
                let Some(peer) = self.peers.take_departed() else { return };
                self.end_departure_grace(peer);
                continue;
            }
            match self.requests.take_expired() {
                Some(RequestId::Send(number)) => self.expire_send(number),
                Some(RequestId::Receive(receive)) => self.expire_receive(receive),
                None => return,
            }
        }
    }

    /// Completes a send whose deadline has passed. If the message is partly transferred, fails the
    /// group, since the caller could not get its buffer back otherwise.
    pub(super) fn expire_send(&mut self, number: u64) {
        let Some(sending) = self.requests.send(number) else { return };
        let (message, stage, slot) = (sending.message, sending.stage, sending.exposure_slot);
        let error = self.send_timeout_error(&message);
        let to = message.to;
        if self.peers.link(to).send_close_error.is_some() {
            // The outgoing stream has ended, so no further bytes of the message are sent.
            return self.complete_send(number, Err(error));
        }
        let was_unqueued = self.peers.dequeue_send(to, number);
        let is_reclaimed = match stage {
            SendStage::Eager => {
                if was_unqueued {
                    self.peers.unuse_credit(to, message.bytes.len());
                }
                was_unqueued
            }
            SendStage::ToSelf { arrival } => {
                self.queues.discard(arrival);
                true
            }
            SendStage::RtsSent => {
                was_unqueued || slot.is_none_or(|slot| self.exposed.withdraw(slot, number))
            }
            // If all fragments are in the stream, the receiver gets them completely or discards
            // them all.
            SendStage::SendingFragments { has_begun, sent, .. } => {
                (!has_begun || sent == message.bytes.len())
                    && !self.peers.link(to).is_sending(number)
            }
        };
        if !is_reclaimed {
            return self.fail(error.context("in the middle of a message"));
        }
        self.peers.drop_fragments(to, number);
        let was_announced = matches!(stage, SendStage::RtsSent) && !was_unqueued
            || matches!(stage, SendStage::SendingFragments { .. });
        if was_announced {
            self.peers.queue_control(to, MessageFrame::CancelRts { number });
            self.flush_peer(to);
        }
        self.complete_send(number, Err(error));
    }

    /// Completes a receive whose deadline has passed. A message that is announced, or that arrives
    /// in fragments, returns to matching. In the middle of an eager message or of a read by CMA,
    /// the group fails.
    pub(super) fn expire_receive(&mut self, receive: u64) {
        let Some(receiving) = self.requests.receive(receive) else { return };
        let stage = receiving.stage;
        let error = self.receive_timeout_error(&receiving.message);
        match stage {
            ReceiveStage::Posted => {
                self.remove_posted(receive);
                self.requests.complete_receive(receive, Err(error));
            }
            ReceiveStage::Delivered(_) => self.requests.complete_delivered(receive),
            ReceiveStage::Accepted { from, number } => {
                self.return_to_matching(from, number, receive, error)
            }
            ReceiveStage::ReceivingEager { from, .. } | ReceiveStage::Transferring { from, .. }
                if self.peers.link(from).receive_close_error.is_some() =>
            {
                // The sender has left in the middle of the message.
                let left_error = self.peers.link(from).receive_close_error.clone();
                self.requests.complete_receive(receive, Err(left_error.unwrap_or(error)));
            }
            ReceiveStage::Transferring { from, number } if self.gets.cancel(from, number) => {
                self.return_to_matching(from, number, receive, error);
            }
            ReceiveStage::ReceivingEager { .. } | ReceiveStage::Transferring { .. } => {
                self.fail(error.context("in the middle of a message"));
            }
        }
    }

    /// Returns an accepted message to matching, because its receive has expired. Fragments that
    /// have arrived or will arrive are discarded, since the next receive requests the message
    /// again.
    fn return_to_matching(&mut self, from: Rank, number: u64, receive: u64, error: Error) {
        self.requests.complete_receive(receive, Err(error));
        self.gets.cancel(from, number);
        self.peers.discard_fragment(from, number);
        let Some(rts) = self.rts.get_mut(from, number) else { return };
        (rts.receive, rts.received) = (None, 0);
        let (arrival, message) = (rts.arrival, rts.to_unexpected(from, number));
        self.on_message_arrived(arrival, message);
    }

    fn send_timeout_error(&self, message: &SendRequest) -> Error {
        let SendRequest { to, tag, bytes, deadline, .. } = message;
        let name = self.peers.name(*to);
        let what = format!("a message of {} bytes with tag {tag} to {name}", bytes.len());
        let what = format!("{what} was not received {}", format_elapsed(deadline));
        Error::new(ErrorKind::Timeout, what).with_culprit(*to)
    }

    fn receive_timeout_error(&self, message: &ReceiveRequest) -> Error {
        let ReceiveRequest { from, tag, deadline, .. } = message;
        let sender = from.map_or("any rank".to_owned(), |from| self.peers.name(from).to_string());
        let tag = tag.map_or("any tag".to_owned(), |tag| format!("tag {tag}"));
        let mut others = (0..self.peers.len()).filter(|&peer| peer != self.peers.rank());
        let hint = match from {
            None if others.all(|peer| self.peers.link(peer).close_error.is_some()) => {
                "; all other ranks have left the group"
            }
            _ => "",
        };
        let what =
            format!("no message of {sender} with {tag} arrived {}{hint}", format_elapsed(deadline));
        let error = Error::new(ErrorKind::Timeout, what);
        match from {
            Some(from) => error.with_culprit(*from),
            None => error,
        }
    }
}

/// Returns the error of a rank that leaves in the middle of a transfer.
fn early_departure_error(what: String, rank: Rank) -> Error {
    Error::new(ErrorKind::PeerFailed, what).with_culprit(rank).with_fault(RankFault::Left)
}

/// Formats the elapsed and the allowed time, for error texts.
fn format_elapsed(deadline: &Deadline) -> String {
    let (elapsed, allowed) = (deadline.elapsed().as_millis(), deadline.timeout().as_millis());
    format!("in {elapsed} ms (allowed: {allowed} ms)")
}
