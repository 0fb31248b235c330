//! The traffic of an engine: which bytes this rank has exchanged with each peer, and which of its
//! messages wait for a call of a peer. The search for deadlocks compares the traffic of two ranks.
//!
//! A stream delivers its bytes in order. Therefore, if a receive has no message although this rank
//! has processed all bytes that the peer has sent, then the peer has not sent the message. An
//! announced message stays in the match queues until a receive of the peer matches it.

use super::link::{InboundFrame, PeerLink};
use super::outstanding::{ReceiveStage, SendStage};
use super::state::MatchingState;
use super::unexpected::MessageBody;
use crate::base::ids::Rank;
use crate::transport::{MessageTraffic, UnmatchedMessage};

/// The maximum number of announced messages in a [`MessageTraffic`].
const MAX_ANNOUNCED: usize = 256;

impl PeerLink {
    /// Returns the number of bytes sent to the peer, or `None` if a frame waits to be written.
    fn sent_bytes(&self) -> Option<u64> {
        self.is_idle().then(|| self.streams.positions().0)
    }

    /// Returns the number of processed bytes of the peer, or `None` if a frame is partly read.
    fn processed_bytes(&self) -> Option<u64> {
        let is_between_frames =
            matches!(self.inbound_frame, InboundFrame::Header { received: 0, .. });
        is_between_frames.then(|| self.streams.positions().1)
    }
}

impl MatchingState {
    /// See [`crate::transport::PointToPoint::traffic`].
    pub(super) fn traffic(&self, work_id: usize) -> MessageTraffic {
        let links = || (0..self.peers.len()).map(|peer| (peer, self.peers.link(peer)));
        let sent = links().map(|(peer, link)| (peer, link.sent_bytes()));
        let received = links().filter_map(|(peer, link)| Some((peer, link.processed_bytes()?)));
        let announced =
            self.queues.unexpected_messages().filter_map(|message| match message.body {
                MessageBody::AtSender(number) => Some((message.from, number)),
                MessageBody::Buffered(_) | MessageBody::OwnSend(_) => None,
            });
        MessageTraffic {
            sent: sent.filter(|&(_, bytes)| bytes != Some(0)).collect(),
            received: received.collect(),
            departed: links()
                .filter(|(_, link)| link.close_error.is_some())
                .map(|(peer, _)| peer)
                .collect(),
            announced: announced.take(MAX_ANNOUNCED).collect(),
            counts: None,
            unmatched: self.unmatched_messages(work_id),
        }
    }

    fn unmatched_messages(&self, work_id: usize) -> Vec<UnmatchedMessage> {
        let receives = self.requests.receives_where(|receive| {
            receive.completion.work_id() == work_id && receive.stage == ReceiveStage::Posted
        });
        let receives = receives.into_iter().filter_map(|number| self.requests.receive(number));
        let receives = receives.map(|receive| receive.message.from);
        let sends = self.requests.sends_where(|send| send.completion.work_id() == work_id);
        let sends = sends.into_iter().filter_map(|number| {
            let send = self.requests.send(number)?;
            let to: Rank = send.message.to;
            match send.stage {
                SendStage::RtsSent | SendStage::ToSelf { .. } => {
                    Some(UnmatchedMessage::Send { to, number })
                }
                SendStage::Eager | SendStage::SendingFragments { .. } => None,
            }
        });
        receives.map(|from| UnmatchedMessage::Receive { from }).chain(sends).collect()
    }
}
