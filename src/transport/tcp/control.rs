//! The control channels between the node leaders (the first rank of each node). They carry
//! [`ControlFrame`]s: reports of departures and of the failure of the group, and queries with their
//! answers. The frames travel on the message links of the leaders' processes
//! ([`outgoing_link`](super::outgoing_link)), which the service thread reads.
//!
//! The leaders join when the group is created, or when they succeed another leader
//! ([`leadership`](super::leadership)). A leader that leaves sends a goodbye frame. If a
//! link breaks before that, the leader has died. The system closes the sockets of a process that
//! dies, and sends the end of a connection again until the other host has received it. There are
//! two cases in which no end arrives: the host of the leader has failed as a whole, or the leader
//! is stopped. The [`heartbeat_monitor`](super::heartbeat_monitor) detects both cases. In addition,
//! `TCP_USER_TIMEOUT` ends a link on which sent data is not acknowledged. This timeout equals the
//! heartbeat limit or, if the heartbeat is off, [`DEFAULT_USER_TIMEOUT`].

use super::control_frame::ControlFrame;
use super::link_frame::{ChannelRanks, Frame};
use super::link_table::LinkTable;
use super::outgoing_link::OutgoingLink;
use crate::base::ids::Rank;
use crate::transport::HeartbeatTiming;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The `TCP_USER_TIMEOUT` of a message link between leaders if the heartbeat is off.
const DEFAULT_USER_TIMEOUT: Duration = Duration::from_secs(20);

/// The control channel to the leader of another node.
#[derive(Debug)]
pub(super) struct LeaderChannel {
    /// The rank of the other leader.
    pub(super) leader: Rank,
    ranks: ChannelRanks,
    pub(super) link: Arc<OutgoingLink>,
    /// The number of the link on which the other leader has joined the group, plus 1; 0 before
    /// that.
    joined_on: AtomicU64,
    /// Whether no further frame is expected, because the other leader has left.
    is_finished: AtomicBool,
    /// Whether frames are dropped, so that a test sees what the peers learn without them.
    #[cfg(test)]
    pub(super) is_muted: AtomicBool,
}

impl LeaderChannel {
    /// Creates the channel on a link that the caller has acquired. [`LeaderChannel::close`]
    /// releases it.
    pub(super) fn new(
        ranks: ChannelRanks,
        link: Arc<OutgoingLink>,
        timing: Option<HeartbeatTiming>,
    ) -> Self {
        link.set_user_timeout(timing.map_or(DEFAULT_USER_TIMEOUT, HeartbeatTiming::limit));
        let channel = Self {
            leader: ranks.to,
            ranks,
            link,
            joined_on: AtomicU64::new(0),
            is_finished: AtomicBool::new(false),
            #[cfg(test)]
            is_muted: AtomicBool::new(false),
        };
        channel.send(&ControlFrame::Joined);
        channel
    }

    /// Sends a frame, now or as soon as there is room.
    pub(super) fn send(&self, frame: &ControlFrame) {
        #[cfg(test)]
        if self.is_muted.load(Ordering::Acquire) {
            return;
        }
        let mut payload = Vec::new();
        frame.encode(&mut payload);
        let head = Frame::Control { ranks: self.ranks, payload: payload.len() };
        self.link.send_frame(&head, &payload);
    }

    /// Sends a frame that may be lost. Does nothing if earlier bytes still wait for room.
    pub(super) fn try_send(&self, frame: &ControlFrame) {
        if !self.link.is_busy() {
            self.send(frame);
        }
    }

    /// Sends a heartbeat, unless another group has just sent one on this link.
    pub(super) fn send_heartbeat(&self, interval: Duration) {
        self.link.send_heartbeat(interval);
    }

    /// Records that the other leader has joined, on this incoming link.
    pub(super) fn mark_joined(&self, link: u64) {
        self.joined_on.store(link + 1, Ordering::Release);
    }

    fn has_joined(&self) -> bool {
        self.joined_on.load(Ordering::Acquire) != 0
    }

    /// Returns true if the other leader has joined, and the link to it was connected. Until then, a
    /// failed attempt to connect means that the group cannot be created.
    pub(super) fn is_established(&self) -> bool {
        self.has_joined() && (self.link.stream().is_some() || self.link.has_ended())
    }

    /// Returns true if the channel uses an incoming link with this number or, for `None`, if the
    /// outgoing link of the channel has ended.
    pub(super) fn uses_link(&self, incoming: Option<u64>) -> bool {
        match incoming {
            Some(number) => self.joined_on.load(Ordering::Acquire) == number + 1,
            None => self.link.has_ended(),
        }
    }

    pub(super) fn mark_finished(&self) {
        self.is_finished.store(true, Ordering::Release);
    }

    /// Returns true while the other leader takes part in the group.
    pub(super) fn is_active(&self) -> bool {
        self.has_joined() && !self.is_finished.load(Ordering::Acquire)
    }

    /// Sends the departure of this leader and a goodbye.
    pub(super) fn close(&self, links: &LinkTable) {
        self.send(&ControlFrame::Left(self.ranks.from));
        self.send(&ControlFrame::Goodbye);
        // A leader may leave before the link to a new leader is connected.
        links.release_after(&self.link, true);
    }
}
