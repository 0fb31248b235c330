//! Progress, and the completion of messages that do not arrive: by timeout, by the failure of the
//! group, or by leaving it.

use super::frame::MessageFrame;
use super::limits::MatchingLimits;
use super::link::{BodyDestination, InboundFrame};
use super::outstanding::{OutstandingSend, ReceiveStage, SendStage};
use super::peer_streams::PeerStreams;
use super::rendezvous::ActiveGet;
use super::state::{MatchingState, TimerTarget};
use super::unexpected::{MessageBody, UnexpectedMessage};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, RankFault};
use crate::base::ids::Rank;
use crate::transport::{ReceiveRequest, SendRequest};
use std::time::Instant;

impl MatchingState {
    /// Makes progress, and then expires messages. In this order, an answer that has already arrived
    /// counts.
    pub(super) fn progress_and_expire(&mut self) {
        self.progress();
        self.expire();
        self.flush_all();
    }

    /// Makes progress on everything, without waiting.
    pub(super) fn progress(&mut self) {
        if self.failure.is_some() {
            return;
        }
        if let Some(error) = self.domain.failure() {
            return self.fail(error);
        }
        self.has_unread_data = false;
        for index in 0..self.node_peers.len() {
            let peer = self.node_peers[index];
            self.poll_ring(peer);
        }
        self.poll_endpoint_streams();
        self.check_answers();
        self.progress_gets();
        self.progress_puts();
        self.flush_all();
    }

    /// Returns whether a further poll could make progress immediately.
    pub(super) fn has_runnable_work(&self) -> bool {
        self.failure.is_none()
            && (self.has_unread_data
                || !self.active_gets.is_empty()
                || !self.asked_gets.is_empty()
                || !self.active_puts.is_empty()
                || !self.ready_peers.is_empty())
    }

    /// Returns whether there is runnable work that no waiting caller makes progress on.
    pub(super) fn needs_service_progress(&self) -> bool {
        let is_unattended = |reading: &ActiveGet| !self.has_blocking_receiver(reading);
        self.failure.is_none()
            && (self.has_unread_data
                || self.active_gets.iter().any(is_unattended)
                || self.active_puts.iter().any(|it| !self.has_blocking_sender(it))
                || !self.ready_peers.is_empty())
    }

    /// Polls the ring of a rank of the same node.
    fn poll_ring(&mut self, peer: Rank) {
        let PeerStreams::Rings { peer: local, .. } = self.links[peer].streams else { return };
        if self.links[peer].close_error.is_some() {
            return;
        }
        // Read the flag before the ring: then all bytes that the peer wrote before it left are
        // visible.
        let has_left = self.domain.has_left(local);
        let has_more = self.drain_stream(peer);
        self.has_unread_data |= has_more;
        if has_left && !has_more && self.failure.is_none() {
            // If the group has failed, its ranks leave after the failure, so the failure is visible
            // here.
            if let Some(error) = self.domain.failure() {
                return self.fail(error);
            }
            let message = format!("{} has left the group", self.peer_name(peer));
            let error = Error::new(ErrorKind::PeerFailed, message).with_culprit(peer);
            self.close_link(peer, &error.with_fault(RankFault::Left));
        }
    }

    /// Polls the streams between nodes that may make progress.
    fn poll_endpoint_streams(&mut self) {
        let Some(endpoint) = &self.endpoint else { return };
        let mut ready = std::mem::take(&mut self.ready_peers);
        endpoint.collect_ready_peers(&mut ready);
        for &peer in &ready {
            if !matches!(
                self.links.get(peer).map(|link| &link.streams),
                Some(PeerStreams::Streams { .. })
            ) {
                continue;
            }
            self.links[peer].is_stream_full = false;
            // Receive before sending: a send to a departed peer fails, and the received frames may
            // complete a send.
            if self.drain_stream(peer) {
                self.ready_peers.push(peer);
            }
            self.flush_peer(peer);
        }
    }

    /// Fails the group, and completes all messages with the first failure reason.
    pub(super) fn fail(&mut self, error: Error) {
        self.fail_group(&error);
        let reason = self.domain.failure().unwrap_or(error);
        self.complete_all(&reason);
    }

    /// Fails the group on all nodes. The first reason is kept.
    fn fail_group(&self, error: &Error) {
        self.domain.fail(error);
        self.endpoint.iter().for_each(|endpoint| endpoint.fail(error));
    }

    /// Completes all messages with an error. The caller ensures that no peer can read this rank's
    /// buffers successfully any more.
    pub(super) fn complete_all(&mut self, reason: &Error) {
        self.failure = Some(reason.clone());
        self.wake_probes();
        let writer_warning = self.wait_for_writers();
        self.active_gets.clear();
        self.asked_gets.clear();
        self.half_done_gets.clear();
        self.active_puts.clear();
        self.links.iter_mut().for_each(super::link::PeerLink::clear);
        self.peers_to_flush.clear();
        self.ready_peers.clear();
        let sends: Vec<u64> = self.sends.keys().copied().collect();
        sends.into_iter().for_each(|number| self.complete_send(number, Err(reason.clone())));
        let receives: Vec<u64> = self.receives.keys().copied().collect();
        for receive in receives {
            self.complete_delivered(receive);
            let error = match &writer_warning {
                Some(doubt) => reason.clone().context(doubt.message()),
                None => reason.clone(),
            };
            self.complete_receive(receive, Err(error));
        }
        self.timers.clear();
    }

    /// Leaves the group in order. Withdraws the exposed buffers; if a peer is reading a buffer,
    /// fails the group.
    pub(super) fn leave(&mut self) {
        self.progress();
        if self.failure.is_some() {
            return;
        }
        let is_being_read = |(&number, sending): (&u64, &OutstandingSend)| {
            sending.exposure_slot.is_some_and(|slot| !self.exposure_table().withdraw(slot, number))
        };
        let text = "this rank left the group before the message completed";
        let reason = Error::new(ErrorKind::Aborted, text);
        if self.sends.iter().any(is_being_read) {
            let what = format!(
                "{} left the group while a peer read its message",
                self.peer_name(self.rank)
            );
            let error = early_departure_error(what, self.rank);
            self.fail_group(&error);
        } else if self.has_requested_puts() {
            let what = format!(
                "{} left the group while a peer wrote a message to it",
                self.peer_name(self.rank)
            );
            let error = early_departure_error(what, self.rank);
            self.fail_group(&error);
        }
        self.complete_all(&reason);
    }

    /// Releases the streams, even if other owners still hold the engine.
    pub(super) fn detach(&mut self) {
        self.endpoint = None;
        self.links.iter_mut().for_each(|link| link.streams = PeerStreams::Loopback);
    }

    /// Returns the error if no message can come from a rank any more. A receive from any rank gets
    /// no error: this rank itself may send.
    pub(super) fn departure_error(&self, from: Option<Rank>) -> Option<Error> {
        self.links[from?].close_error.clone()
    }

    /// Completes a receive that already has its message.
    pub(super) fn complete_delivered(&mut self, receive: u64) {
        if let Some(receiving) = self.receives.get(&receive)
            && let ReceiveStage::Delivered(delivery) = receiving.stage
        {
            self.complete_receive(receive, Ok(delivery));
        }
    }

    pub(super) fn remove_posted(&mut self, receive: u64) {
        if let Some(receiving) = self.receives.get(&receive) {
            let ReceiveRequest { from, tag, .. } = receiving.message;
            self.posted.remove((from, tag), receive);
        }
    }

    /// Returns the time at which the next timer expires.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.timers.first().map(|&(due, _)| due)
    }

    /// Completes the messages that have expired.
    pub(super) fn expire(&mut self) {
        while let Some(&(due, timed)) = self.timers.first() {
            if self.failure.is_some() || due > Instant::now() {
                return;
            }
            self.timers.pop_first();
            match timed {
                TimerTarget::Send(number) => self.expire_send(number),
                TimerTarget::Receive(receive) => self.expire_receive(receive),
                TimerTarget::Departure(peer) => self.end_departure_grace(peer),
            }
        }
    }

    pub(super) fn expire_send(&mut self, number: u64) {
        let Some(sending) = self.sends.get(&number) else { return };
        let (message, stage, slot) = (sending.message, sending.stage, sending.exposure_slot);
        let error = self.send_timeout_error(&message);
        let to = message.to;
        if self.links[to].send_close_error.is_some() {
            // No further bytes of the message are sent.
            return self.complete_send(number, Err(error));
        }
        let was_unqueued = self.links[to].dequeue_send(number);
        let is_reclaimed = match stage {
            SendStage::Eager => {
                if was_unqueued {
                    self.links[to].used_credit -= MatchingLimits::credit_cost(message.bytes.len());
                }
                was_unqueued
            }
            SendStage::ToSelf { arrival } => {
                self.discard_message(arrival);
                true
            }
            SendStage::RtsSent => {
                was_unqueued || slot.is_none_or(|slot| self.exposure_table().withdraw(slot, number))
            }
            // Fragments that are all in the stream are either received completely or discarded.
            SendStage::SendingFragments { has_begun, sent, .. } => {
                (!has_begun || sent == message.bytes.len()) && !self.links[to].is_sending(number)
            }
        };
        if !is_reclaimed {
            return self.fail(error.context("in the middle of a message"));
        }
        self.links[to].fragment_queue.retain(|&other| other != number);
        let was_announced = matches!(stage, SendStage::RtsSent) && !was_unqueued
            || matches!(stage, SendStage::SendingFragments { .. });
        if was_announced {
            self.queue_control(to, MessageFrame::CancelRts { number });
            self.flush_peer(to);
        }
        self.complete_send(number, Err(error));
    }

    pub(super) fn expire_receive(&mut self, receive: u64) {
        let Some(receiving) = self.receives.get(&receive) else { return };
        let stage = receiving.stage;
        let error = self.receive_timeout_error(&receiving.message);
        match stage {
            ReceiveStage::Posted => {
                self.remove_posted(receive);
                self.complete_receive(receive, Err(error));
            }
            ReceiveStage::Delivered(_) => self.complete_delivered(receive),
            ReceiveStage::Accepted { from, number } => {
                self.return_offer(from, number, receive, error)
            }
            ReceiveStage::ReceivingEager { from, .. } | ReceiveStage::Transferring { from, .. }
                if self.links[from].receive_close_error.is_some() =>
            {
                // The sender has left in the middle of the message.
                let left_error = self.links[from].receive_close_error.clone().unwrap_or(error);
                self.complete_receive(receive, Err(left_error));
            }
            ReceiveStage::Transferring { from, number } if self.cancel_get(from, number) => {
                self.return_offer(from, number, receive, error);
            }
            ReceiveStage::ReceivingEager { .. } | ReceiveStage::Transferring { .. } => {
                self.fail(error.context("in the middle of a message"));
            }
        }
    }

    /// Returns an accepted message, whose receive has expired, to matching. Fragments that have
    /// arrived or still arrive are discarded: the next receive requests the message again.
    fn return_offer(&mut self, from: Rank, number: u64, receive: u64, error: Error) {
        self.complete_receive(receive, Err(error));
        self.cancel_get(from, number);
        if let InboundFrame::Body { destination, .. } = &mut self.links[from].inbound_frame
            && matches!(destination, BodyDestination::Fragment(of) if *of == number)
        {
            *destination = BodyDestination::Discard;
        }
        let Some(rts) = self.links[from].received_rts.get_mut(&number) else { return };
        (rts.receive, rts.received) = (None, 0);
        let (arrival, body) = (rts.arrival, MessageBody::AtSender(number));
        let message =
            UnexpectedMessage { from, tag: rts.tag, dtype: rts.dtype, len: rts.len, body };
        self.on_message_arrived(arrival, message);
    }

    fn send_timeout_error(&self, message: &SendRequest) -> Error {
        let SendRequest { to, tag, bytes, deadline, .. } = message;
        let name = self.peer_name(*to);
        let what = format!("a message of {} bytes with tag {tag} to {name}", bytes.len());
        let hint = "was not received";
        Error::new(ErrorKind::Timeout, format!("{what} {hint} {}", format_elapsed(deadline)))
            .with_culprit(*to)
    }

    fn receive_timeout_error(&self, message: &ReceiveRequest) -> Error {
        let ReceiveRequest { from, tag, deadline, .. } = message;
        let sender = from.map_or("any rank".to_owned(), |from| self.peer_name(from).to_string());
        let tag = tag.map_or("any tag".to_owned(), |tag| format!("tag {tag}"));
        let mut others = (0..self.links.len()).filter(|&peer| peer != self.rank);
        let hint = match from {
            None if others.all(|peer| self.links[peer].close_error.is_some()) => {
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

/// Returns the error of a rank that left in the middle of a transfer.
fn early_departure_error(what: String, rank: Rank) -> Error {
    Error::new(ErrorKind::PeerFailed, what).with_culprit(rank).with_fault(RankFault::Left)
}

/// Formats the elapsed and the allowed time, for messages.
fn format_elapsed(deadline: &Deadline) -> String {
    let (elapsed, allowed) = (deadline.elapsed().as_millis(), deadline.timeout().as_millis());
    format!("in {elapsed} ms (allowed: {allowed} ms)")
}
