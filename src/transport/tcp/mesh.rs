//! The mesh: the state of [`Endpoint`](crate::transport::Endpoint) over TCP. There is one TCP
//! connection for each peer, direction and channel in use.
//!
//! A connection has no framing: after the hello, all its bytes are the caller's, and the receiver
//! reads them directly into the destination buffer. A rank can therefore not send a message that
//! says why it ends a connection. Instead, the kind of the end says this:
//!
//! * An end of file means that the peer has left in order. A rank that leaves in order sends a FIN
//!   on each connection after its last bytes.
//! * Every other end means that the peer has died. With `DIST_SECURITY=encrypt` this includes a FIN
//!   without the sealed record of an orderly end ([`SocketStream::check_end`]). A rank that dies
//!   must not send a FIN. Therefore the mesh sets every connection to be *reset* when it is closed
//!   ([`SocketStream::set_reset_on_close`]), also when the system closes it because the process has
//!   died. Only an orderly departure undoes this setting.
//!
//! If a rank dies, the data that its system has not sent yet is lost. A reset may also be lost on
//! the network, and a host that has failed sends no reset. In both cases, the peers learn of the
//! death from the control connections between the node leaders, which report every death.
//! [`peer_state`](super::peer_state) decides what follows from a departure or a death.

use super::connect_target::PeerConnectTarget;
use super::control::ControlConnection;
use super::control_frame::ControlFrame;
use super::failure_notice;
use super::hello::{ConnectionPurpose, Hello};
use super::link_proof::LinkTerms;
use super::members::TcpMember;
use super::message_streams::MessageStreams;
use super::peer_connect::{PeerConnectHandler, PeerConnector};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{GroupId, Rank};
use crate::base::label::Label;
use crate::base::log::LogLevel;
use crate::base::sync::lock;
use crate::security::LinkSecurity;
use crate::sys::eventfd::EventFd;
use crate::sys::poll::{Interest, PollEvents, Poller};
use crate::sys::stream::{SocketStream, is_transient};
use crate::transport::{
    Channel, DoorbellListener, HeartbeatConfig, PeerName, SharedDomain, StreamDirection,
};
use crate::wait::WaitPolicy;
use crate::wait::doorbell::Doorbell;
use crate::wait::service::{Alarm, DescriptorHandler, WatchAction};
use crate::wait::service_task::ServiceTask;
use std::collections::BTreeMap;
use std::io::ErrorKind as Io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Instant;

/// The state of an outgoing stream.
#[derive(Debug, Default)]
pub(super) enum OutgoingStream {
    #[default]
    Unused,
    Connecting(Arc<PeerConnector>),
    Open(Arc<SocketStream>),
    Failed(Error),
}

/// The two streams of one channel between this rank and one peer.
#[derive(Debug, Default)]
pub(super) struct StreamPair {
    pub(super) outgoing: Mutex<OutgoingStream>,
    pub(super) incoming: Mutex<Option<Arc<SocketStream>>>,
}

/// An event that takes effect after a delay.
#[derive(Clone, Debug)]
pub(super) enum DelayedPeerEvent {
    /// A death that a stream has shown, with the error for the group.
    Death(Error),
    /// The departure of a rank. The reason of the departure may arrive during the delay.
    Departure(Rank),
}

/// The state of a mesh, which the calling threads and the service thread share.
#[derive(Debug)]
pub(super) struct TcpMeshShared {
    pub(super) group: GroupId,
    pub(super) epoch: u32,
    pub(super) me: Rank,
    pub(super) security: LinkSecurity,
    pub(super) members: Vec<TcpMember>,
    /// The node leaders: the first rank of each node.
    pub(super) leaders: Vec<Rank>,
    pub(super) lanes: u8,
    pub(super) wait_policy: WaitPolicy,
    pub(super) domain: Arc<dyn SharedDomain>,
    /// All streams, indexed by peer and channel.
    pub(super) stream_pairs: Vec<StreamPair>,
    pub(super) peer_states: Vec<AtomicU8>,
    /// The poller that reports the end of each stream to the service thread.
    pub(super) end_poller: Arc<Poller>,
    /// The event that ends a wait. It is raised after a change that the descriptors of the streams
    /// do not show.
    pub(super) wake: EventFd,
    pub(super) messages: Arc<MessageStreams>,
    /// The events that take effect later, each with its time.
    pub(super) delayed_events: Mutex<Vec<(Instant, DelayedPeerEvent)>>,
    pub(super) delayed_event_alarm: OnceLock<Alarm>,
    pub(super) vitals: HeartbeatConfig,
    /// The alarm on which a leader sends heartbeats; set only on a leader, if heartbeats are on.
    pub(super) heartbeat_alarm: OnceLock<Alarm>,
    /// The ranks of other nodes whose activity this rank has queried, each with the answer, or
    /// `None` before the answer has arrived.
    pub(super) activity_answers: Mutex<BTreeMap<Rank, Option<String>>>,
    /// The current query for the labels of an operation, and the answer.
    pub(super) label_query: Mutex<Option<LabelQuery>>,
    /// The connections to the other leaders, indexed by node; empty on a rank that is not a leader.
    pub(super) control_connections: Mutex<Vec<Option<Arc<ControlConnection>>>>,
    pub(super) connectors: Mutex<Vec<Arc<PeerConnector>>>,
    /// The first error of a connection attempt to another leader.
    pub(super) connect_error: Mutex<Option<Error>>,
    /// The doorbell of a caller that waits for a control connection or for an answer. It is
    /// notified when a control connection is added or fails, and when an answer arrives.
    pub(super) doorbell: Doorbell,
    pub(super) is_leader: bool,
    /// Whether the failure of the group is known to all nodes, or is being sent to them.
    pub(super) is_failure_forwarded: AtomicBool,
    /// Whether the progress handler was woken because of the failure.
    pub(super) is_failure_reported: AtomicBool,
    /// For each rank of this node, whether its departure was reported to the other nodes.
    pub(super) reported_left: Mutex<Vec<bool>>,
    /// The lock that a thread holds while it sends updates to the other leaders, and while it
    /// closes the control connections. An *update* is the failure of the group or the departure of
    /// a rank of this node.
    pub(super) forwarding: Mutex<()>,
    /// The task of the service thread that sends updates to the other leaders.
    pub(super) forward_task: OnceLock<ServiceTask>,
    /// Whether this rank is leaving. If it is, new connections are closed immediately. A thread
    /// that adds a connection checks this under the lock of the entry for the connection.
    pub(super) is_leaving: AtomicBool,
    pub(super) weak: Weak<Self>,
}

/// A query for the labels of an operation of a rank on another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LabelQuery {
    pub(super) rank: Rank,
    pub(super) sequence: u64,
    /// `None` before the answer has arrived.
    pub(super) labels: Option<Vec<Label>>,
}

impl TcpMeshShared {
    pub(super) fn rank_count(&self) -> usize {
        self.members.len()
    }

    pub(super) fn name(&self, rank: Rank) -> &PeerName {
        &self.members[rank].name
    }

    pub(super) fn channel_count(&self) -> usize {
        usize::from(self.lanes) + 1
    }

    fn pair_index(&self, peer: Rank, channel: Channel) -> usize {
        let channel = match channel {
            Channel::Collective(lane) => usize::from(lane),
            Channel::PointToPoint => usize::from(self.lanes),
        };
        peer * self.channel_count() + channel
    }

    pub(super) fn stream_pair(&self, peer: Rank, channel: Channel) -> &StreamPair {
        &self.stream_pairs[self.pair_index(peer, channel)]
    }

    /// Fails the group, for a reason that the other nodes do not know yet. The leader of this node
    /// sends the reason to them.
    pub(super) fn fail_all_nodes(&self, error: &Error) {
        if self.domain.failure().is_none() {
            crate::log!(LogLevel::Error, "{error}");
        }
        self.domain.fail(error);
    }

    /// Fails the group on this node, for a reason that the other nodes already know.
    pub(super) fn fail_this_node(&self, error: &Error) {
        self.is_failure_forwarded.store(true, Ordering::Release);
        self.domain.fail(error);
    }

    /// Returns true if this node has an update that was not sent to the other leaders.
    fn has_unforwarded_updates(&self) -> bool {
        let failed = self.domain.region().abort_record().is_set();
        failed && !self.is_failure_forwarded.load(Ordering::Acquire)
            || (0..self.domain.size())
                .zip(lock(&self.reported_left).iter())
                .any(|(local, &reported)| !reported && self.domain.has_left(local))
    }

    /// Sends the new updates to the other leaders. Called on the service thread.
    pub(super) fn forward_updates(&self) {
        let passing = lock(&self.forwarding);
        self.send_updates();
        drop(passing);
    }

    /// Sends the last updates and closes the control connections. If another thread is sending
    /// updates, waits for that thread first.
    pub(super) fn close_control_connections(&self) {
        let passing = lock(&self.forwarding);
        if self.is_leader {
            self.send_updates();
        }
        let connections = std::mem::take(&mut *lock(&self.control_connections));
        connections.iter().flatten().for_each(|connection| connection.close(self.me));
        drop(passing);
    }

    fn send_updates(&self) {
        // Hold this lock until the frames are sent. Another thread that finds no update left may
        // close the connections.
        let mut reported = lock(&self.reported_left);
        let frames = self.collect_updates(&mut reported);
        let connections: Vec<_> =
            lock(&self.control_connections).iter().flatten().cloned().collect();
        connections
            .iter()
            .for_each(|connection| frames.iter().for_each(|frame| connection.send(frame)));
    }

    /// Returns the updates that the other leaders do not have yet, as frames, and marks them as
    /// sent. The failure comes before the departures, because it may be the cause of them.
    pub(super) fn collect_updates(&self, reported: &mut [bool]) -> Vec<ControlFrame> {
        // Read the departures before the failure. A rank that left because of a failure left after
        // the failure was set. If this thread sees such a departure, it therefore also sees the
        // failure.
        let left: Vec<bool> =
            (0..reported.len()).map(|local| self.domain.has_left(local)).collect();
        let mut frames = Vec::new();
        if let Some(error) = self.domain.failure()
            && !self.is_failure_forwarded.swap(true, Ordering::AcqRel)
        {
            frames.push(ControlFrame::Abort(error));
        }
        for (local, reported) in reported.iter_mut().enumerate() {
            if left[local] && !*reported {
                *reported = true;
                frames.push(ControlFrame::Left(self.domain.peer(local).rank));
            }
        }
        frames
    }

    /// Creates a connector for a stream or a control connection.
    ///
    /// # Errors
    /// `Connection` if no address is reachable.
    pub(super) fn new_connector(
        &self,
        to: Rank,
        purpose: ConnectionPurpose,
        retry_until: Option<Deadline>,
    ) -> Result<Arc<PeerConnector>> {
        let (own, peer) = (&self.members[self.me], &self.members[to]);
        let terms = LinkTerms::between(&self.security, own, peer);
        let hello = Hello {
            purpose,
            group: self.group,
            epoch: self.epoch,
            from: self.me,
            to,
            security: terms.setting(),
            cipher: terms.cipher(),
        };
        let handler: Weak<dyn PeerConnectHandler> = self.weak.clone();
        let target = PeerConnectTarget::between(hello, terms, own, peer, retry_until)?;
        Ok(PeerConnector::new(target, handler))
    }

    /// Starts to watch a new stream for its end and, for a point-to-point stream, for readiness.
    pub(super) fn watch_stream(
        &self,
        peer: Rank,
        channel: Channel,
        direction: StreamDirection,
        stream: &Arc<SocketStream>,
    ) -> std::io::Result<()> {
        if channel == Channel::PointToPoint {
            let interest = match direction {
                StreamDirection::In => Interest::READ,
                StreamDirection::Out => Interest::WRITE,
            };
            self.messages.add_stream(stream.as_fd(), peer, interest)?;
        }
        let token =
            self.pair_index(peer, channel) * 2 + usize::from(direction == StreamDirection::In);
        self.end_poller.add_hang_up(stream.as_fd(), u64::try_from(token).unwrap_or(u64::MAX))
    }

    /// Handles the end of a stream, on the service thread. `token` identifies the stream.
    fn handle_stream_end(&self, token: u64) {
        let Ok(token) = usize::try_from(token) else { return };
        let (index, incoming) = (token / 2, token % 2 == 1);
        let Some(slot) = self.stream_pairs.get(index) else { return };
        let peer = index / self.channel_count();
        let (reason, outcome) = if incoming {
            let stream = lock(&slot.incoming);
            (None, stream.as_ref().map_or(Ok(()), |stream| self.classify_stream_end(peer, stream)))
        } else {
            match &*lock(&slot.outgoing) {
                OutgoingStream::Open(stream) => {
                    let reason = failure_notice::receive_reason(stream, self.rank_count());
                    (reason, self.classify_stream_end(peer, stream))
                }
                _ => (None, Ok(())),
            }
        };
        for error in reason.into_iter().chain(outcome.err()) {
            self.fail_all_nodes(&error);
        }
    }

    /// Classifies the end of a stream as a departure or a death of the peer, and records this. The
    /// caller has locked the entry of the stream.
    fn classify_stream_end(&self, peer: Rank, stream: &SocketStream) -> Result<()> {
        // This call fails only if the poller does not watch the stream, which does not matter.
        drop(self.end_poller.remove(stream.as_fd()));
        match stream.take_error().or_else(|| stream.check_end().err()) {
            Some(cause) => self.classify_error(peer, cause).map(drop),
            None => {
                self.mark_left(peer);
                Ok(())
            }
        }
    }

    /// Returns the error for an encrypted connection that a third party changes.
    pub(super) fn tampered_error(&self, peer: Rank, cause: &std::io::Error) -> Error {
        let message = format!("the connection to {}: {cause}", self.name(peer));
        Error::new(ErrorKind::Auth, message).with_culprit(peer)
    }

    /// Classifies the error of a transfer with a peer. If the peer has left or died, records this
    /// and returns true. Returns false if the error is transient. The caller has locked the entry
    /// of the stream.
    ///
    /// # Errors
    /// `Auth` if a third party changes the stream; `System` for a failure of this rank.
    pub(super) fn classify_error(&self, peer: Rank, cause: std::io::Error) -> Result<bool> {
        if is_transient(&cause) {
            return Ok(false);
        }
        match cause.kind() {
            // The system reports this error if the end of file from the peer arrived before the
            // connection was closed.
            Io::BrokenPipe => self.mark_left(peer),
            Io::ConnectionReset
            | Io::ConnectionAborted
            | Io::TimedOut
            | Io::HostUnreachable
            | Io::NetworkUnreachable => self.mark_died(peer, &cause.to_string()),
            // An encrypted stream carried bytes that the peer did not send.
            Io::InvalidData => return Err(self.tampered_error(peer, &cause)),
            _ => {
                let what = format_args!("transfer on the connection to {}", self.name(peer));
                return Err(Error::system(what, cause));
            }
        }
        Ok(true)
    }
}

impl DoorbellListener for TcpMeshShared {
    fn on_doorbell(&self) {
        self.wake.raise();
        if self.domain.region().abort_record().is_set()
            && !self.is_failure_reported.swap(true, Ordering::AcqRel)
        {
            self.mark_culprit_died();
            self.messages.wake_progress();
            self.doorbell.notify();
        }
        if self.is_leader
            && self.has_unforwarded_updates()
            && let Some(news) = self.forward_task.get()
        {
            news.wake();
        }
    }
}

/// The handler of the service thread for the ends of all streams.
#[derive(Debug)]
pub(super) struct StreamEndHandler {
    pub(super) shared: Weak<TcpMeshShared>,
    pub(super) poller: Arc<Poller>,
}

impl DescriptorHandler for StreamEndHandler {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }

    fn on_readable(&self) -> WatchAction {
        let Some(shared) = self.shared.upgrade() else { return WatchAction::Done };
        let mut events = PollEvents::with_capacity(64);
        if self.poller.poll_now(&mut events).is_ok() {
            events.iter().for_each(|event| shared.handle_stream_end(event.token));
        }
        WatchAction::Keep
    }
}
