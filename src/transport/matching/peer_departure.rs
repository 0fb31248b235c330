//! The departure of a peer: completes the messages that only this peer could complete, and keeps
//! the messages that the peer sent before it left.
//!
//! The two streams of a link end at different times: this rank's stream to the peer fails
//! immediately, while the last bytes from the peer may still be in transit.
//!
//! If a group fails, its ranks leave, and this rank may see a peer leave before it sees the reason
//! of the failure. When a stream ends, its link therefore begins a *grace period*
//! ([`DEPARTURE_GRACE`]). If the failure reason arrives in that time, the messages of the link
//! complete with that reason. Otherwise they complete with the error of the departure.

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

    /// Handles an error of an outgoing stream. If the peer has not left but cannot be reached, the
    /// group fails. Otherwise the peer would wait for messages that never arrive, and no other rank
    /// would tell it.
    pub(super) fn on_send_error(&mut self, peer: Rank, error: Error) {
        if error.kind() != ErrorKind::PeerFailed {
            return self.on_receive_error(peer, error);
        }
        self.peers.close_send(peer, error);
        self.requests.complete_delivered_from(peer);
        self.begin_departure_grace(peer);
    }

    /// Starts the grace period of a peer that seems to have left, in which the failure reason may
    /// still arrive.
    fn begin_departure_grace(&mut self, peer: Rank) {
        if let Some(error) = self.domain.failure() {
            return self.fail(error);
        }
        self.peers.begin_departure(peer);
    }

    /// Ends the grace period of a peer. No failure reason has arrived.
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

    /// Cancels the accepted messages of a peer, because their bytes will not arrive any more. A
    /// receive from this peer fails. A receive from any rank looks for another message.
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
