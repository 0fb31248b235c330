//! [`Endpoint`](crate::transport::Endpoint) over TCP: one connection for each direction and channel
//! that is used.
//!
//! **Streams are raw**: after the hello of each connection its bytes are the caller's, read
//! straight into where they belong. So the end of a stream is told by the connection itself. A rank
//! that leaves sends the end of each connection (FIN) after its last bytes. A rank that dies must
//! not: all connections of a mesh are set to be *reset* when they are closed, which is what the
//! system does for a process that dies, and which only leaving in order undoes. An end of file is
//! thus an orderly leave, and anything else a death. What a dying rank's system had not sent yet is
//! lost. A reset that is lost under way, or comes from a host that is gone, is made good by the
//! control connections, which tell every death. What comes of all that is in
//! [`peer_state`](super::standing).

use super::control::ControlConnection;
use super::control_frame::ControlFrame;
use super::failure_notice;
use super::hello::{ConnectionPurpose, Hello};
use super::join::TcpMember;
use super::listener_registry::{is_transient, lock};
use super::message_streams::MessageStreams;
use super::peer_connect::{PeerConnectHandler, PeerConnectTarget, PeerConnector};
use super::peer_state::DelayedPeerEvent;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use crate::base::ids::{GroupId, Rank};
use crate::base::label::Label;
use crate::base::log::LogLevel;
use crate::sys::eventfd::EventFd;
use crate::sys::poll::{Interest, PollEvents, Poller};
use crate::sys::stream::SocketStream;
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

/// A stream to a peer.
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

/// What the calling threads and the service thread share.
#[derive(Debug)]
pub(super) struct TcpMeshShared {
    pub(super) group: GroupId,
    pub(super) epoch: u32,
    pub(super) me: Rank,
    pub(super) members: Vec<TcpMember>,
    /// The first rank of each node.
    pub(super) leaders: Vec<Rank>,
    pub(super) lanes: u8,
    pub(super) wait_policy: WaitPolicy,
    pub(super) domain: Arc<dyn SharedDomain>,
    /// By peer and channel.
    pub(super) stream_pairs: Vec<StreamPair>,
    pub(super) peer_states: Vec<AtomicU8>,
    /// All streams, watched for their end.
    pub(super) end_poller: Arc<Poller>,
    /// Raised when something has changed that no stream shows; ends rests.
    pub(super) wake: EventFd,
    pub(super) messages: Arc<MessageStreams>,
    /// What was seen on streams, and when it counts.
    pub(super) delayed_events: Mutex<Vec<(Instant, DelayedPeerEvent)>>,
    pub(super) delayed_event_alarm: OnceLock<Alarm>,
    pub(super) vitals: HeartbeatConfig,
    /// Present on a leader that beats.
    pub(super) heartbeat_alarm: OnceLock<Alarm>,
    /// The ranks of other nodes that were asked what they do, and their answers.
    pub(super) activity_answers: Mutex<BTreeMap<Rank, Option<String>>>,
    /// The operation whose labels another node was asked for, and the answer.
    pub(super) label_query: Mutex<Option<LabelQuery>>,
    /// By node: the connections to the other leaders; present on a leader.
    pub(super) control_connections: Mutex<Vec<Option<Arc<ControlConnection>>>>,
    pub(super) connectors: Mutex<Vec<Arc<PeerConnector>>>,
    /// Why a leader cannot be reached.
    pub(super) connect_error: Mutex<Option<Error>>,
    /// Rung when a line comes or cannot, and when somebody answers.
    pub(super) doorbell: Doorbell,
    pub(super) is_leader: bool,
    /// The failure is known on all nodes, or on its way.
    pub(super) is_failure_forwarded: AtomicBool,
    /// The attendant knows of the failure.
    pub(super) is_failure_reported: AtomicBool,
    /// Which ranks of the node the others know to have left.
    pub(super) reported_left: Mutex<Vec<bool>>,
    /// Held while news goes to the other leaders, and while the lines to them end.
    pub(super) forwarding: Mutex<()>,
    /// Passes news of this node on to the other leaders.
    pub(super) forward_task: OnceLock<ServiceTask>,
    /// This rank leaves: what comes now is closed at once. Looked at under the lock of the place
    /// that it is for.
    pub(super) is_leaving: AtomicBool,
    pub(super) weak: Weak<Self>,
}

/// A question for the labels of an operation.
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

    /// Fails the group for a reason that other nodes must learn.
    pub(super) fn fail_all_nodes(&self, error: &Error) {
        if self.domain.failure().is_none() {
            crate::log!(LogLevel::Error, "{error}");
        }
        self.domain.fail(error);
    }

    /// Fails this node for a reason that the others know.
    pub(super) fn fail_this_node(&self, error: &Error) {
        self.is_failure_forwarded.store(true, Ordering::Release);
        self.domain.fail(error);
    }

    /// True where the other leaders do not know all that this one does.
    fn has_unforwarded_updates(&self) -> bool {
        let failed = self.domain.region().abort_record().is_set();
        failed && !self.is_failure_forwarded.load(Ordering::Acquire)
            || (0..self.domain.size())
                .zip(lock(&self.reported_left).iter())
                .any(|(local, &reported)| !reported && self.domain.has_left(local))
    }

    /// Tells the other leaders. On the service thread, and by a leader that leaves.
    pub(super) fn forward_updates(&self) {
        let passing = lock(&self.forwarding);
        self.send_updates();
        drop(passing);
    }

    /// Tells them for the last time, and ends the lines. What another thread is passing on goes
    /// first.
    pub(super) fn close_control_connections(&self) {
        let passing = lock(&self.forwarding);
        if self.is_leader {
            self.send_updates();
        }
        let connections = std::mem::take(&mut *lock(&self.control_connections));
        connections.iter().flatten().for_each(|line| line.close(self.me));
        drop(passing);
    }

    fn send_updates(&self) {
        // Held to the end: whoever finds nothing left to tell may close the connections.
        let mut reported = lock(&self.reported_left);
        let frames = self.collect_updates(&mut reported);
        let connections: Vec<_> =
            lock(&self.control_connections).iter().flatten().cloned().collect();
        connections.iter().for_each(|line| frames.iter().for_each(|frame| line.send(frame)));
    }

    /// What the other leaders do not know yet. A failure comes first: those who leave then leave
    /// because of it.
    pub(super) fn collect_updates(&self, reported: &mut [bool]) -> Vec<ControlFrame> {
        // Looked at before the failure, which whoever leaves after it has seen.
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

    /// Begins to connect a stream.
    ///
    /// # Errors
    /// `Connection` where there is no address to try.
    pub(super) fn new_connector(
        &self,
        to: Rank,
        purpose: ConnectionPurpose,
        retry_until: Option<Deadline>,
    ) -> Result<Arc<PeerConnector>> {
        let (own, peer) = (&self.members[self.me], &self.members[to]);
        let hello = Hello {
            purpose,
            group: self.group,
            epoch: self.epoch,
            from: self.me,
            to,
            nonce: own.nonce,
            expected_nonce: peer.nonce,
        };
        let handler: Weak<dyn PeerConnectHandler> = self.weak.clone();
        Ok(PeerConnector::new(PeerConnectTarget::between(hello, own, peer, retry_until)?, handler))
    }

    /// Watches a stream that has just come to be.
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

    /// A stream has ended; on the service thread.
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

    /// A stream has ended, whose place is locked.
    fn classify_stream_end(&self, peer: Rank, stream: &SocketStream) -> Result<()> {
        // Fails only where it is not watched.
        drop(self.end_poller.remove(stream.as_fd()));
        match stream.take_error() {
            Some(cause) => self.classify_error(peer, &cause).map(drop),
            None => {
                self.mark_left(peer);
                Ok(())
            }
        }
    }

    /// What it means that a transfer with a peer failed: false for nothing yet, true that the peer
    /// has left or died, which is noted. The stream's place is locked.
    ///
    /// # Errors
    /// `System` for a failure of this rank's own.
    pub(super) fn classify_error(&self, peer: Rank, cause: &std::io::Error) -> Result<bool> {
        if is_transient(cause) {
            return Ok(false);
        }
        match cause.kind() {
            // What the system says where the end had come before the connection was closed.
            Io::BrokenPipe => self.mark_left(peer),
            Io::ConnectionReset
            | Io::ConnectionAborted
            | Io::TimedOut
            | Io::HostUnreachable
            | Io::NetworkUnreachable => self.mark_died(peer, &cause.to_string()),
            _ => {
                let what = format_args!("using the connection with {}", self.name(peer));
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

/// The ends of all streams, as the service thread watches them.
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

/// Sends the end of a stream after its last bytes, and lets the system deliver them.
pub(super) fn close_gracefully(stream: &SocketStream) {
    stream.shutdown_write();
    // Without it the bytes that have not gone yet would be lost; that is all that can be done.
    drop(stream.set_reset_on_close(false));
}
