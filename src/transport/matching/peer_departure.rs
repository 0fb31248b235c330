//! The departure of a peer: completes all messages that only this peer could complete, and keeps
//! the messages that it sent before.
//!
//! The two directions of a stream end separately: a stream to a departed peer fails at once, while
//! the peer's last bytes are still in transit. If a group fails, its ranks may be seen to leave
//! before the failure reason arrives. A link therefore has a *grace period* ([`DEPARTURE_GRACE`]),
//! so that its messages complete with that reason.

use super::outstanding::ReceiveStage;
use super::state::MatchingState;
use crate::base::error::{Error, ErrorKind};
use crate::base::ids::Rank;
use crate::base::log::LogLevel;
#[cfg(doc)]
use crate::transport::heartbeat::DEPARTURE_GRACE;

impl MatchingState {
    /// Handles an error of an incoming stream.
    pub(super) fn on_receive_error(&mut self, peer: Rank, error: Error) {
        match error.kind() {
            ErrorKind::PeerFailed => {
                self.peers.close_receive(peer, error);
                self.begin_departure_grace(peer);
            }
            ErrorKind::Internal => {
                let what = format!("{} violated the message protocol", self.peers.name(peer));
                self.fail(error.context(what).with_culprit(peer));
            }
            _ => self.fail(error.context(format!("messages of {}", self.peers.name(peer)))),
        }
    }

    /// Handles an error of an outgoing stream. If a peer is alive but unreachable, the group fails:
    /// the peer waits for messages that never arrive, and no other rank would notify it.
    pub(super) fn on_send_error(&mut self, peer: Rank, error: Error) {
        if error.kind() != ErrorKind::PeerFailed {
            return self.on_receive_error(peer, error);
        }
        self.peers.close_send(peer, error);
        self.requests.complete_delivered_from(peer);
        self.begin_departure_grace(peer);
    }

    /// Starts the grace period of a peer that seems to have left: the failure reason may still
    /// arrive.
    fn begin_departure_grace(&mut self, peer: Rank) {
        if let Some(error) = self.domain.failure() {
            return self.fail(error);
        }
        self.peers.begin_departure(peer);
    }

    /// Ends the grace period: no failure reason has arrived.
    pub(super) fn end_departure_grace(&mut self, peer: Rank) {
        let link = self.peers.link(peer);
        match (link.receive_close_error.clone(), link.send_close_error.clone()) {
            (Some(error), _) => self.close_link(peer, &error),
            (None, Some(error)) => self.fail_sends(peer, &error),
            (None, None) => {}
        }
    }

    /// Closes the link to a peer in both directions.
    pub(super) fn close_link(&mut self, peer: Rank, error: &Error) {
        if !self.peers.close(peer, error) {
            return;
        }
        if let Some(writer_warning) = self.wait_for_writers() {
            crate::log!(LogLevel::Warn, "{}", writer_warning.message());
        }
        self.rts.clear_peer(peer);
        self.gets.drop_gets(|of| of == peer);
        self.puts.drop_puts(|of| of == peer);
        self.queues.discard_announced_by(peer);
        self.fail_sends(peer, error);
        let waiting = self.requests.receives_where(|receiving| match receiving.stage {
            ReceiveStage::Posted => receiving.message.from == Some(peer),
            ReceiveStage::ReceivingEager { from, .. } | ReceiveStage::Transferring { from, .. } => {
                from == peer
            }
            ReceiveStage::Accepted { .. } => false,
            ReceiveStage::Delivered(delivery) => delivery.peer == peer,
        });
        for receive in waiting {
            self.remove_posted(receive);
            self.requests.complete_delivered(receive);
            self.requests.complete_receive(receive, Err(error.clone()));
        }
        self.cancel_accepted(peer, error);
    }

    /// Completes all sends to a peer with an error.
    fn fail_sends(&mut self, peer: Rank, error: &Error) {
        for number in self.requests.sends_where(|sending| sending.message.to == peer) {
            self.complete_send(number, Err(error.clone()));
        }
    }

    /// Cancels requested messages of a peer that will not arrive. A receive from any rank waits for
    /// the next message.
    fn cancel_accepted(&mut self, peer: Rank, error: &Error) {
        let is_its = |stage| matches!(stage, ReceiveStage::Accepted { from, .. } if from == peer);
        for receive in self.requests.receives_where(|it| is_its(it.stage)) {
            match self.requests.receive(receive).and_then(|receiving| receiving.message.from) {
                Some(_) => self.requests.complete_receive(receive, Err(error.clone())),
                None => self.match_receive(receive),
            }
        }
    }
}
