//! The leaders of the nodes, and their succession.
//!
//! The leader of a node is its lowest rank that has not left the group. At first this is the first
//! rank of the node. When a leader leaves, the next rank of its node becomes the leader: it opens
//! control channels to the leaders of the other nodes. They also open channels to it when they
//! learn of the departure. The first frame on a new channel is "joined". All earlier reports of the
//! node follow, because some may have been lost in between.
//!
//! A leader tells the ranks of its node which ranks of other nodes have left: it sets their bits in
//! the memory of the node ([`Region`](crate::transport::Region)). A successor finds them there.

use super::control::LeaderChannel;
use super::control_frame::ControlFrame;
use super::heartbeat_monitor;
use super::hello::ConnectionPurpose;
use super::mesh::TcpMeshShared;
use super::peer_state::PRESENT;
use crate::base::ids::Rank;
use crate::base::log::LogLevel;
use crate::base::sync::lock;
use crate::transport::Channel;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl TcpMeshShared {
    /// Returns true if this rank is the leader of its node.
    pub(super) fn is_leader(&self) -> bool {
        self.is_leader.load(Ordering::Acquire)
    }

    /// Returns true once this rank has joined the group, so that the leaders may change.
    pub(super) fn has_joined(&self) -> bool {
        self.has_joined.load(Ordering::Acquire)
    }

    /// Records that this rank has joined the group. Sends the updates of this node from before the
    /// control channels existed, and follows leaders that have left.
    pub(super) fn finish_join(&self) {
        self.has_joined.store(true, Ordering::Release);
        self.forward_updates();
    }

    /// Returns the control channel to the leader of another node, if this rank is a leader.
    pub(super) fn control_channel(&self, node: usize) -> Option<Arc<LeaderChannel>> {
        lock(&self.control_channels).get(node)?.clone()
    }

    /// Returns the control channels to all other leaders; empty on a rank that is not a leader.
    pub(super) fn open_control_channels(&self) -> Vec<Arc<LeaderChannel>> {
        lock(&self.control_channels).iter().flatten().cloned().collect()
    }

    /// Returns the lowest rank of a node that has not left the group, as far as this rank knows.
    fn leader_of(&self, node: usize) -> Option<Rank> {
        let own_node = self.members[self.me].node;
        if node == own_node {
            let locals = 0..self.domain.size();
            let present = locals.into_iter().find(|&local| !self.domain.has_left(local))?;
            return Some(self.domain.peer(present).rank);
        }
        let ranks = 0..self.rank_count();
        ranks
            .into_iter()
            .find(|&rank| self.members[rank].node == node && self.peer_state(rank) == PRESENT)
    }

    /// Returns true if ranks have left, or the leader of this node, since the last update.
    pub(super) fn has_leader_news(&self) -> bool {
        let becomes_leader = || self.leader_of(self.members[self.me].node) == Some(self.me);
        self.new_departures().next().is_some() || !self.is_leader() && becomes_leader()
    }

    /// Returns the ranks that have left, as the memory of this node shows, and that this mesh does
    /// not know as such yet.
    fn new_departures(&self) -> impl Iterator<Item = Rank> + '_ {
        let locals = (0..self.domain.size()).filter(|&local| self.domain.has_left(local));
        let locals = locals.map(|local| self.domain.peer(local).rank);
        let departed = self.domain.region().remote_departures().chain(locals);
        departed.filter(|&rank| {
            rank < self.rank_count() && rank != self.me && !self.is_reported_left(rank)
        })
    }

    /// Records that a rank of another node has left, and tells the ranks of this node.
    pub(super) fn record_remote_departure(&self, rank: Rank) {
        self.mark_reported_left(rank);
        if self.domain.region().mark_remote_departure(rank) {
            let others = (0..self.domain.size()).filter(|&local| local != self.domain.rank());
            others.for_each(|local| self.domain.notify_listeners(local));
        }
    }

    /// Takes over departures, and follows changes of leaders. Called on the
    /// service thread, under the lock `forwarding`.
    pub(super) fn update_leaders(&self) {
        if self.is_leaving.load(Ordering::Acquire) || !self.has_joined() {
            return;
        }
        let departed: Vec<Rank> = self.new_departures().collect();
        departed.into_iter().for_each(|rank| self.mark_reported_left(rank));
        let own_node = self.members[self.me].node;
        if !self.is_leader() {
            if self.leader_of(own_node) != Some(self.me) {
                return;
            }
            self.become_leader();
        }
        for node in (0..self.leaders.len()).filter(|&node| node != own_node) {
            let Some(leader) = self.leader_of(node) else { continue };
            if self.control_channel(node).is_none_or(|channel| channel.leader != leader) {
                self.follow_leader(node, leader);
            }
        }
    }

    /// Makes this rank the leader of its node, because the ranks before it have left.
    fn become_leader(&self) {
        crate::log!(LogLevel::Debug, "{} now leads its node", self.name(self.me));
        *lock(&self.control_channels) = (0..self.leaders.len()).map(|_| None).collect();
        self.is_leader.store(true, Ordering::Release);
        if let Some(timing) = self.timing
            && let Some(shared) = self.weak.upgrade()
            && let Err(error) = heartbeat_monitor::start(&shared, timing)
        {
            crate::log!(LogLevel::Error, "this rank sends no heartbeats to other hosts: {error}");
        }
        // Frames of other leaders that came before have waited in the table.
        self.links.accept_control((self.group, self.me));
    }

    /// Opens a control channel to the new leader of another node, and sends it all reports of this
    /// node.
    pub(super) fn follow_leader(&self, node: usize, leader: Rank) {
        let Some(channel) = self.open_control_channel(node, leader) else { return };
        let purpose = ConnectionPurpose::Stream(Channel::PointToPoint);
        let connected =
            channel.link.connect(|handler| self.new_connector(leader, purpose, None, handler));
        if let Err(error) = connected {
            crate::log!(LogLevel::Warn, "no control channel to {}: {error}", self.name(leader));
        }
        if let Some(error) = self.domain.failure() {
            channel.send(&ControlFrame::Abort(error));
        }
        for local in (0..self.domain.size()).filter(|&local| self.domain.has_left(local)) {
            channel.send(&ControlFrame::Left(self.domain.peer(local).rank));
        }
    }

    /// Opens a control channel, which takes the place of the one to the former leader of the node.
    /// Returns `None` if this rank has closed its control channels, because it leaves.
    pub(super) fn open_control_channel(
        &self,
        node: usize,
        leader: Rank,
    ) -> Option<Arc<LeaderChannel>> {
        let mut channels = lock(&self.control_channels);
        let slot = channels.get_mut(node)?;
        let link = self.links.acquire(self.link_key(leader, Channel::PointToPoint));
        let channel = Arc::new(LeaderChannel::new(self.ranks_to(leader), link, self.timing));
        let former = slot.replace(Arc::clone(&channel));
        drop(channels);
        if let Some(former) = former {
            self.links.release(&former.link);
        }
        Some(channel)
    }
}
