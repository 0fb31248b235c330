//! The handlers by which a mesh ([`TcpMeshShared`]) gets its links and control frames:
//!
//! - [`ConnectionAcceptor`] adds the links that other processes connect to this one.
//! - [`LinkUser`] handles what happens on the links.

use super::control::LeaderChannel;
use super::control_frame::ControlFrame;
use super::hello::{ConnectionPurpose, Hello, HelloRefusal};
use super::incoming_connection::ConnectionAcceptor;
use super::link_proof::{LinkAcceptance, LinkTerms};
use super::link_user::{LinkEnd, LinkKey, LinkUser};
use super::members::ExpectedPeers;
use super::mesh::TcpMeshShared;
use super::peer_connect::{PeerConnectHandler, PeerConnector};
use super::peer_state::HAS_DIED;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, RankFault};
use crate::base::ids::{Nonce, Rank};
use crate::base::log::LogLevel;
use crate::base::sync::lock;
use crate::sys::stream::SocketStream;
use crate::transport::Channel;
use std::sync::{Arc, Weak};

impl ConnectionAcceptor for TcpMeshShared {
    fn check_hello(&self, hello: &Hello) -> Result<LinkTerms, HelloRefusal> {
        let Self { epoch, me, lanes, ref members, .. } = *self;
        ExpectedPeers { epoch, me, members, lanes }.check(hello)?;
        let known = |channel| self.links.incoming(&self.link_key(hello.from, channel));
        match hello.purpose {
            ConnectionPurpose::Stream(channel)
                if known(channel).is_some_and(|link| link.is_in_use()) =>
            {
                return Err(HelloRefusal::Duplicate);
            }
            ConnectionPurpose::Resume(channel) | ConnectionPurpose::Probe(channel) => {
                let key = self.link_key(hello.from, channel);
                self.links.check_replacement(&key, hello.purpose)?;
            }
            ConnectionPurpose::Reconnect => return Err(HelloRefusal::IdentityMismatch),
            _ => {}
        }
        Ok(LinkTerms::between(&self.security, &members[hello.from], &members[me]))
    }

    fn accept_connection(
        &self,
        hello: &Hello,
        stream: Arc<SocketStream>,
        acceptance: &LinkAcceptance,
    ) {
        let channel = match hello.purpose {
            ConnectionPurpose::Stream(channel) => channel,
            ConnectionPurpose::Resume(channel) | ConnectionPurpose::Probe(channel) => {
                let key = self.link_key(hello.from, channel);
                return self.links.accept_replacement(&key, hello.purpose, &stream, acceptance);
            }
            ConnectionPurpose::Reconnect => return,
        };
        // The link belongs to the process, so it is accepted even if this rank leaves now.
        let reset_armed = stream.set_reset_on_close(true);
        let key = self.link_key(hello.from, channel);
        if self.links.incoming(&key).is_some_and(|link| !link.is_in_use()) {
            // The answer to the first connection was lost.
            return self.links.resume_incoming(&key, &stream, |_| acceptance.send(&stream));
        }
        let accept = || acceptance.send(&stream);
        if !self.links.add_incoming(key, &stream, accept) {
            let refusal = HelloRefusal::Duplicate;
            let name = self.name(hello.from);
            crate::log!(LogLevel::Debug, "dropped a stream of {name}: {refusal}");
            drop(stream.send(&[refusal as u8]));
            return stream.close_gracefully();
        }
        if let Err(cause) = reset_armed {
            self.fail_all_nodes(&Error::system("watching a connection", cause));
        }
    }
}

impl LinkUser for TcpMeshShared {
    fn process_of(&self, rank: Rank) -> Option<Nonce> {
        self.members.get(rank).map(|member| member.process)
    }

    fn on_input(&self, from: Rank, channel: Channel) {
        if channel == Channel::PointToPoint {
            self.messages.notify_peer(from);
        }
        self.wake.wake();
    }

    fn on_room(&self, to: Rank, channel: Channel) {
        self.on_input(to, channel);
    }

    fn on_left(&self, from: Rank, reason: Option<Error>) {
        if let Some(reason) = reason
            && reason.culprit().is_none_or(|culprit| culprit < self.rank_count())
        {
            self.fail_all_nodes(&reason);
        }
        self.mark_announced_left(from);
    }

    fn on_control_open(&self) {
        self.doorbell.notify();
    }

    fn on_control_end(&self, key: &LinkKey, link: Option<u64>, end: &LinkEnd) {
        for channel in self.open_control_channels() {
            if channel.link.key == *key && channel.uses_link(link) {
                self.on_link_end(channel.leader, end);
                self.report_leader_death(&channel, end);
            }
        }
    }

    fn on_control(&self, from: Rank, link: u64, bytes: &[u8]) {
        let node = self.members[from].node;
        match ControlFrame::decode(bytes, self.rank_count()) {
            Ok(Some((frame, len))) if len == bytes.len() => {
                let mut channel = self.control_channel(node);
                // The former leader has left; its own report may arrive later.
                let is_successor = channel.as_ref().is_none_or(|it| it.leader < from);
                if matches!(frame, ControlFrame::Joined)
                    && is_successor
                    && self.is_leader()
                    && self.has_joined()
                {
                    self.follow_leader(node, from);
                    channel = self.control_channel(node);
                }
                // A rank that is not a leader sends no control frames.
                if let Some(channel) = channel.filter(|it| it.leader == from) {
                    self.handle_control(frame, &channel, link);
                }
            }
            Ok(_) => self.fail_all_nodes(&self.died_error(from, "it sent an incomplete frame")),
            Err(what) => {
                self.fail_all_nodes(&self.died_error(from, &format!("it sent {what}")));
            }
        }
    }

    fn on_unreachable(&self, to: Rank, channel: Channel, error: Error) {
        let is_joining = channel == Channel::PointToPoint
            && !self.has_joined()
            && self.control_channel(self.members[to].node).is_some_and(|it| !it.is_established());
        if is_joining {
            lock(&self.connect_error).get_or_insert(error);
            self.doorbell.notify();
            return;
        }
        if error.has_fault(RankFault::Died) {
            self.fail_all_nodes(&error);
        } else if error.kind() == ErrorKind::PeerFailed {
            self.mark_left(to);
        } else {
            lock(&self.channel_pair(to, channel).outgoing).error = Some(error);
        }
        self.on_input(to, channel);
    }

    fn on_link_end(&self, peer: Rank, end: &LinkEnd) {
        self.handle_link_end(peer, end);
        // A wait must not use the descriptor of the link any more.
        self.wake.wake();
        self.messages.notify_peer(peer);
    }

    fn connector_to(
        &self,
        key: &LinkKey,
        purpose: ConnectionPurpose,
        retry_until: Option<Deadline>,
        handler: Weak<dyn PeerConnectHandler>,
        to_former: bool,
    ) -> Option<crate::base::error::Result<Arc<PeerConnector>>> {
        let is_there = |&rank: &Rank| {
            rank != self.me
                && self.link_key(rank, key.channel) == *key
                && self.has_left(rank) == to_former
        };
        let rank = (0..self.rank_count()).find(is_there)?;
        Some(self.new_connector(rank, purpose, retry_until, handler))
    }
}

impl TcpMeshShared {
    /// Fails the group without a grace period if the control link of another leader broke. No other
    /// rank can report the death of this leader.
    fn report_leader_death(&self, channel: &LeaderChannel, end: &LinkEnd) {
        if let LinkEnd::Broken(cause) = end
            && self.peer_state(channel.leader) == HAS_DIED
            && channel.is_active()
        {
            self.fail_all_nodes(&self.died_error(channel.leader, &cause.to_string()));
        }
    }

    fn handle_control(&self, frame: ControlFrame, channel: &LeaderChannel, link: u64) {
        match frame {
            ControlFrame::Joined => {
                channel.mark_joined(link);
                self.doorbell.notify();
            }
            ControlFrame::Goodbye => channel.mark_finished(),
            ControlFrame::Abort(error) => self.fail_this_node(&error),
            ControlFrame::Left(rank) => self.record_remote_departure(rank),
            ControlFrame::AskActivity(rank) => self.answer_activity_query(rank, channel),
            ControlFrame::Activity(rank, text) => self.store_activity_answer(rank, text),
            ControlFrame::AskLabels(rank, sequence) => {
                self.answer_label_query(rank, sequence, channel);
            }
            ControlFrame::Labels(rank, sequence, labels) => {
                self.store_label_answer(rank, sequence, labels);
            }
            ControlFrame::Heartbeat => {}
        }
    }
}
