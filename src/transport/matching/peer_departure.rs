//! The departure of a peer: completes all messages that only this peer could complete, and keeps
//! the messages that it sent before.
//!
//! The two directions of a stream end separately: a stream to a departed peer fails at once, while
//! the peer's last bytes are still in transit. If a group fails, its ranks may be seen to leave
//! before the failure reason arrives. A link therefore has a *grace period* ([`DEPARTURE_GRACE`]),
//! so that its messages complete with that reason.

use super::outstanding::ReceiveStage;
use super::state::{MatchingState, TimerTarget};
use super::unexpected::{MessageBody, UnexpectedMessage};
use crate::base::error::{Error, ErrorKind};
use crate::base::ids::Rank;
use crate::base::log::LogLevel;
use crate::transport::heartbeat::DEPARTURE_GRACE;
use std::time::Instant;

impl MatchingState {
    /// Handles an error of an incoming stream.
    pub(super) fn on_receive_error(&mut self, peer: Rank, error: Error) {
        match error.kind() {
            ErrorKind::PeerFailed => {
                self.links[peer].receive_close_error = Some(error);
                self.begin_departure_grace(peer);
            }
            ErrorKind::Internal => {
                let what = format!("{} violated the message protocol", self.peer_name(peer));
                self.fail(error.context(what).with_culprit(peer));
            }
            _ => self.fail(error.context(format!("messages of {}", self.peer_name(peer)))),
        }
    }

    /// Handles an error of an outgoing stream. If a peer is alive but unreachable, the group fails:
    /// the peer waits for messages that never arrive, and no other rank would notify it.
    pub(super) fn on_send_error(&mut self, peer: Rank, error: Error) {
        if error.kind() != ErrorKind::PeerFailed {
            return self.on_receive_error(peer, error);
        }
        let link = &mut self.links[peer];
        link.clear_outbound();
        link.send_close_error = Some(error);
        self.complete_all_delivered(peer);
        // Messages that the peer has sent are still received.
        self.ready_peers.push(peer);
        self.begin_departure_grace(peer);
    }

    /// Starts the grace period of a peer that seems to have left: the failure reason may still
    /// arrive.
    fn begin_departure_grace(&mut self, peer: Rank) {
        if let Some(error) = self.domain.failure() {
            return self.fail(error);
        }
        let link = &mut self.links[peer];
        if link.departure_deadline.is_none() {
            let at = Instant::now() + DEPARTURE_GRACE;
            link.departure_deadline = Some(at);
            self.timers.insert((at, TimerTarget::Departure(peer)));
        }
    }

    /// Ends the grace period: no failure reason has arrived.
    pub(super) fn end_departure_grace(&mut self, peer: Rank) {
        let link = &mut self.links[peer];
        link.departure_deadline = None;
        match (link.receive_close_error.clone(), link.send_close_error.clone()) {
            (Some(error), _) => self.close_link(peer, &error),
            (None, Some(error)) => self.fail_sends(peer, &error),
            (None, None) => {}
        }
    }

    /// Closes the link to a peer in both directions.
    pub(super) fn close_link(&mut self, peer: Rank, error: &Error) {
        let link = &mut self.links[peer];
        if link.close_error.is_some() {
            return;
        }
        link.close_error = Some(error.clone());
        if let Some(writer_warning) = self.wait_for_writers() {
            crate::log!(LogLevel::Warn, "{}", writer_warning.message());
        }
        let link = &mut self.links[peer];
        link.clear();
        if let Some(at) = link.departure_deadline.take() {
            self.timers.remove(&(at, TimerTarget::Departure(peer)));
        }
        self.active_gets.retain(|reading| reading.is_for_other_peer(peer));
        self.asked_gets.retain(|reading| reading.is_for_other_peer(peer));
        self.half_done_gets.retain(|reading| reading.is_for_other_peer(peer));
        self.active_puts.retain(|writing| writing.is_for_other_peer(peer));
        let offered: Vec<u64> = self
            .unexpected
            .messages_from(peer)
            .filter(|(_, message)| matches!(message.body, MessageBody::AtSender(_)))
            .map(|(arrival, _)| arrival)
            .collect();
        offered.into_iter().for_each(|arrival| drop(self.unexpected.remove(arrival)));
        let is_offered =
            |it: &UnexpectedMessage| it.from == peer && matches!(it.body, MessageBody::AtSender(_));
        self.probed_messages.retain(|_, message| !is_offered(message));
        self.wake_probes();
        self.fail_sends(peer, error);
        let waiting = self.receives.iter().filter(|(_, receiving)| match receiving.stage {
            ReceiveStage::Posted => receiving.message.from == Some(peer),
            ReceiveStage::ReceivingEager { from, .. } | ReceiveStage::Transferring { from, .. } => {
                from == peer
            }
            ReceiveStage::Accepted { .. } => false,
            ReceiveStage::Delivered(delivery) => delivery.peer == peer,
        });
        let waiting: Vec<u64> = waiting.map(|(&receive, _)| receive).collect();
        for receive in waiting {
            self.remove_posted(receive);
            self.complete_delivered(receive);
            self.complete_receive(receive, Err(error.clone()));
        }
        self.cancel_accepted_offers(peer, error);
    }

    /// Completes the receives that have their message and can no longer send a FIN.
    fn complete_all_delivered(&mut self, peer: Rank) {
        let is_its = |stage| matches!(stage, ReceiveStage::Delivered(it) if it.peer == peer);
        let receives = self.receives.iter().filter(|(_, receiving)| is_its(receiving.stage));
        let receives: Vec<u64> = receives.map(|(&receive, _)| receive).collect();
        receives.into_iter().for_each(|receive| self.complete_delivered(receive));
    }

    /// Completes all sends to a peer with an error.
    fn fail_sends(&mut self, peer: Rank, error: &Error) {
        let sends = self.sends.iter().filter(|(_, sending)| sending.message.to == peer);
        let sends: Vec<u64> = sends.map(|(&number, _)| number).collect();
        sends.into_iter().for_each(|number| self.complete_send(number, Err(error.clone())));
    }

    /// Cancels requested messages of a peer that will not arrive. A receive from any rank waits for
    /// the next message.
    fn cancel_accepted_offers(&mut self, peer: Rank, error: &Error) {
        let requested =
            self.receives.iter().filter_map(|(&receive, receiving)| match receiving.stage {
                ReceiveStage::Accepted { from, number } if from == peer => Some((receive, number)),
                _ => None,
            });
        let mut requested: Vec<(u64, u64)> = requested.collect();
        requested.sort_unstable();
        for (receive, number) in requested {
            if let Some(rts) = self.links[peer].received_rts.get_mut(&number) {
                rts.receive = None;
            }
            match self.receives.get(&receive).and_then(|receiving| receiving.message.from) {
                Some(_) => self.complete_receive(receive, Err(error.clone())),
                None => self.match_receive(receive),
            }
        }
    }
}
