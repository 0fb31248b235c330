//! The handlers by which a mesh ([`TcpMeshShared`]) gets its connections and control frames:
//!
//! - [`ConnectionAcceptor`] adds the connections that peers made to this rank.
//! - [`PeerConnectHandler`] adds the control connections that this rank made to peers.
//! - [`LinkUser`] handles what happens on the links.
//! - [`ControlHandler`] handles the frames that arrive on the control connections between the node
//!   leaders.

use super::control::{ControlConnection, ControlHandler};
use super::control_frame::ControlFrame;
use super::hello::{CONFIRM_BYTES, ConnectionPurpose, Hello, HelloRefusal};
use super::incoming_connection::ConnectionAcceptor;
use super::link_proof::LinkTerms;
use super::link_table::{LinkEnd, LinkKey, LinkUser};
use super::members::ExpectedPeers;
use super::mesh::TcpMeshShared;
use super::peer_connect::{PeerConnectHandler, PeerConnector};
use crate::base::error::{Error, ErrorKind};
use crate::base::ids::{Nonce, Rank};
use crate::base::log::LogLevel;
use crate::base::sync::lock;
use crate::sys::stream::SocketStream;
use crate::transport::Channel;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

impl ConnectionAcceptor for TcpMeshShared {
    fn check_hello(&self, hello: &Hello) -> Result<LinkTerms, HelloRefusal> {
        let Self { epoch, me, lanes, .. } = *self;
        let (members, leaders) = (&self.members, &self.leaders);
        ExpectedPeers { epoch, me, members, leaders, lanes }.check(hello)?;
        let is_duplicate = match hello.purpose {
            ConnectionPurpose::Stream(channel) => {
                self.links.incoming(&self.link_key(hello.from, channel)).is_some()
            }
            ConnectionPurpose::Control => {
                match lock(&self.control_connections).get(members[hello.from].node) {
                    Some(connection) => connection.is_some(),
                    None => return Err(HelloRefusal::IdentityMismatch),
                }
            }
            ConnectionPurpose::Reconnect => return Err(HelloRefusal::IdentityMismatch),
        };
        if is_duplicate {
            return Err(HelloRefusal::Duplicate);
        }
        Ok(LinkTerms::between(&self.security, &members[hello.from], &members[me]))
    }

    fn accept_connection(
        &self,
        hello: &Hello,
        stream: Arc<SocketStream>,
        acceptance: &[u8; CONFIRM_BYTES],
    ) {
        let ConnectionPurpose::Stream(channel) = hello.purpose else {
            // Send the acceptance before the first control frame.
            drop(stream.send(acceptance));
            return self.add_control_connection(hello.from, stream);
        };
        // The link belongs to the process, so it is accepted even if this rank leaves now.
        let reset_armed = stream.set_reset_on_close(true);
        let accept = || drop(stream.send(acceptance));
        if !self.links.add_incoming(self.link_key(hello.from, channel), &stream, accept) {
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

impl PeerConnectHandler for TcpMeshShared {
    fn on_connected(&self, hello: &Hello, stream: Arc<SocketStream>) {
        self.add_control_connection(hello.to, stream);
    }

    fn on_failed(&self, _: &Hello, error: Error) {
        lock(&self.connect_error).get_or_insert(error);
        self.doorbell.notify();
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

    fn on_unreachable(&self, to: Rank, channel: Channel, error: Error) {
        if error.kind() == ErrorKind::PeerFailed {
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
        handler: Weak<dyn PeerConnectHandler>,
    ) -> Option<crate::base::error::Result<Arc<PeerConnector>>> {
        let is_there = |&rank: &Rank| {
            rank != self.me && self.link_key(rank, key.channel) == *key && !self.has_left(rank)
        };
        let rank = (0..self.rank_count()).find(is_there)?;
        let purpose = ConnectionPurpose::Stream(key.channel);
        Some(self.new_connector(rank, purpose, None, handler))
    }
}

impl ControlHandler for TcpMeshShared {
    fn rank_count(&self) -> usize {
        self.members.len()
    }

    fn on_frame(&self, frame: ControlFrame, connection: &ControlConnection) {
        match frame {
            ControlFrame::Abort(error) => self.fail_this_node(&error),
            ControlFrame::Left(rank) => self.mark_reported_left(rank),
            ControlFrame::AskActivity(rank) => self.answer_activity_query(rank, connection),
            ControlFrame::Activity(rank, text) => self.store_activity_answer(rank, text),
            ControlFrame::AskLabels(rank, sequence) => {
                self.answer_label_query(rank, sequence, connection);
            }
            ControlFrame::Labels(rank, sequence, labels) => {
                self.store_label_answer(rank, sequence, labels);
            }
            ControlFrame::Goodbye | ControlFrame::Heartbeat => {}
        }
    }

    fn on_lost(&self, leader: Rank, reason: &str) {
        self.fail_all_nodes(&self.died_error(leader, reason));
    }
}

impl TcpMeshShared {
    fn add_control_connection(&self, leader: Rank, stream: Arc<SocketStream>) {
        let handler: Weak<dyn ControlHandler> = self.weak.clone();
        let connection = ControlConnection::open(handler, leader, stream, self.vitals.timing);
        let node = self.members[leader].node;
        let mut connections = lock(&self.control_connections);
        if self.is_leaving.load(Ordering::Acquire) {
            drop(connections);
            return connection.close(self.me);
        }
        if let Some(entry) = connections.get_mut(node) {
            *entry = Some(Arc::clone(&connection));
        }
        // Start to read under the lock. Otherwise [`TcpMeshShared::close_control_connections`]
        // could close a connection that then starts to read.
        let started = connection.start_reading();
        drop(connections);
        if let Err(error) = started {
            lock(&self.connect_error).get_or_insert(error);
        }
        self.doorbell.notify();
    }
}
