//! The handlers by which a mesh ([`TcpMeshShared`]) gets its connections and control frames:
//!
//! - [`ConnectionAcceptor`] adds the connections that peers made to this rank.
//! - [`PeerConnectHandler`] adds the connections that this rank made to peers.
//! - [`ControlHandler`] handles the frames that arrive on the control connections between the node
//!   leaders.

use super::control::{ControlConnection, ControlHandler};
use super::control_frame::ControlFrame;
use super::hello::{ConnectionPurpose, Hello, HelloRefusal};
use super::incoming_connection::ConnectionAcceptor;
use super::link_proof::{LinkAcceptance, LinkTerms};
use super::members::ExpectedPeers;
use super::mesh::{OutgoingStream, TcpMeshShared};
use super::peer_connect::PeerConnectHandler;
use crate::base::error::{Error, ErrorKind};
use crate::base::ids::Rank;
use crate::base::log::LogLevel;
use crate::base::sync::lock;
use crate::sys::stream::SocketStream;
use crate::transport::{Channel, StreamDirection};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

impl ConnectionAcceptor for TcpMeshShared {
    fn check_hello(&self, hello: &Hello) -> Result<LinkTerms, HelloRefusal> {
        let Self { epoch, me, lanes, .. } = *self;
        let (members, leaders) = (&self.members, &self.leaders);
        ExpectedPeers { epoch, me, members, leaders, lanes }.check(hello)?;
        let is_duplicate = match hello.purpose {
            ConnectionPurpose::Stream(channel) => {
                lock(&self.stream_pair(hello.from, channel).incoming).is_some()
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
        acceptance: &LinkAcceptance,
    ) {
        let ConnectionPurpose::Stream(channel) = hello.purpose else {
            // Send the acceptance before the first control frame.
            acceptance.send(&stream);
            return self.add_control_connection(hello.from, stream);
        };
        let slot = self.stream_pair(hello.from, channel);
        let mut incoming = lock(&slot.incoming);
        let refusal = match incoming.is_some() {
            true => Some(HelloRefusal::Duplicate),
            false => self.is_leaving.load(Ordering::Acquire).then_some(HelloRefusal::NoSuchRank),
        };
        if let Some(refusal) = refusal {
            drop(incoming);
            crate::log!(
                LogLevel::Debug,
                "dropped a stream of {}: {refusal}",
                self.name(hello.from)
            );
            drop(stream.send(&[refusal as u8]));
            return stream.shutdown_write();
        }
        let reset_armed = stream.set_reset_on_close(true);
        *incoming = Some(Arc::clone(&stream));
        // Send the acceptance under the lock, so that another thread cannot close the stream before
        // these bytes.
        acceptance.send(&stream);
        drop(incoming);
        let watch = |()| self.watch_stream(hello.from, channel, StreamDirection::In, &stream);
        if let Err(cause) = reset_armed.and_then(watch) {
            self.fail_all_nodes(&Error::system("watching a connection", cause));
        }
        self.wake.raise();
    }
}

impl PeerConnectHandler for TcpMeshShared {
    fn on_connected(&self, hello: &Hello, stream: Arc<SocketStream>) {
        let ConnectionPurpose::Stream(channel) = hello.purpose else {
            return self.add_control_connection(hello.to, stream);
        };
        let mut out = lock(&self.stream_pair(hello.to, channel).outgoing);
        if self.is_leaving.load(Ordering::Acquire) {
            return stream.close_gracefully();
        }
        let reset_armed = stream.set_reset_on_close(true);
        *out = OutgoingStream::Open(Arc::clone(&stream));
        drop(out);
        let watch = |()| self.watch_stream(hello.to, channel, StreamDirection::Out, &stream);
        if let Err(cause) = reset_armed.and_then(watch) {
            self.fail_all_nodes(&Error::system("watching a connection", cause));
        }
        self.wake.raise();
    }

    fn on_failed(&self, hello: &Hello, error: Error) {
        let ConnectionPurpose::Stream(channel) = hello.purpose else {
            lock(&self.connect_error).get_or_insert(error);
            self.doorbell.notify();
            return;
        };
        let mut out = lock(&self.stream_pair(hello.to, channel).outgoing);
        if error.kind() == ErrorKind::PeerFailed {
            *out = OutgoingStream::Unused;
            self.mark_left(hello.to);
        } else {
            *out = OutgoingStream::Failed(error);
        }
        drop(out);
        self.wake.raise();
        if channel == Channel::PointToPoint {
            self.messages.notify_peer(hello.to);
        }
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

    fn on_tampered(&self, leader: Rank, cause: &std::io::Error) {
        self.fail_all_nodes(&self.tampered_error(leader, cause));
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
