//! The mesh: the state of [`Endpoint`](crate::transport::Endpoint) over TCP. The streams of a group
//! are channels on the links of the process ([`link_table`](super::link_table)).
//!
//! A rank that leaves the group in order says so on its links, after its last bytes. The end of a
//! link shows how the other process has ended:
//!
//! * An end of file means that the process has left all its groups in order.
//! * Every other end means that the connection broke: it is replaced
//!   ([`outgoing_resume`](super::outgoing_resume)), or the process has died. With
//!   `DIST_SECURITY=encrypt` this includes a FIN without the sealed record of an orderly end. A
//!   process that dies must not send a FIN.
//!   Therefore every link is set to be *reset* when it is closed
//!   ([`SocketStream::set_reset_on_close`](crate::sys::stream::SocketStream)), also when the system
//!   closes it because the process has died. Only an orderly departure undoes this setting.
//!
//! If a rank dies, the data that its system has not sent yet is lost. A reset may also be lost on
//! the network, and a host that has failed sends no reset. In both cases, the peers learn of the
//! death from the control connections between the node leaders, which report every death.
//! [`peer_state`](super::peer_state) decides what follows from a departure or a death.

use super::connect_target::PeerConnectTarget;
use super::control::LeaderChannel;
use super::control_frame::ControlFrame;
use super::former_rank::FormerRank;
use super::hello::{ConnectionPurpose, Hello};
use super::incoming_channel::IncomingChannel;
use super::incoming_link::IncomingLink;
use super::late_link::LateLinkCheck;
use super::link_frame::ChannelRanks;
use super::link_proof::LinkTerms;
use super::link_table::LinkTable;
use super::link_user::{LinkKey, LinkUser};
use super::members::TcpMember;
use super::mesh_waker::MeshWaker;
use super::message_streams::MessageStreams;
use super::outgoing_channel::OutgoingChannel;
use super::outgoing_link::OutgoingLink;
use super::peer_connect::{PeerConnectHandler, PeerConnector};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use crate::base::ids::{GroupId, Rank};
use crate::base::label::Label;
use crate::base::log::LogLevel;
use crate::base::sync::lock;
use crate::security::LinkSecurity;
use crate::transport::{Channel, DoorbellListener, HeartbeatTiming, PeerName, SharedDomain};
use crate::wait::WaitPolicy;
use crate::wait::doorbell::Doorbell;
use crate::wait::service::Alarm;
use crate::wait::service_task::ServiceTask;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Instant;

/// The two channels of one kind between this rank and one peer.
#[derive(Debug, Default)]
pub(super) struct ChannelPair {
    pub(super) outgoing: Mutex<OutgoingSlot>,
    incoming: OnceLock<Arc<IncomingChannel>>,
    /// The link from the peer's process, once it is known.
    incoming_link: Mutex<Option<Arc<IncomingLink>>>,
    /// The link on which the peer has opened the channel. It does not change while the group lives.
    open_link: OnceLock<Arc<IncomingLink>>,
    /// Whether this rank has asked the peer's process if the peer has left.
    pub(super) has_asked: AtomicBool,
    /// Whether a link from the process of the peer, which has left, may come.
    pub(super) late_link: OnceLock<Arc<LateLinkCheck>>,
}

/// The sending end of a channel.
#[derive(Debug, Default)]
pub(super) struct OutgoingSlot {
    pub(super) channel: Option<(Arc<OutgoingLink>, Arc<OutgoingChannel>)>,
    /// Why the peer cannot be reached.
    pub(super) error: Option<Error>,
}

/// An event that takes effect after a delay.
#[derive(Clone, Debug)]
pub(super) enum DelayedPeerEvent {
    /// A death that a stream has shown, with the error for the group.
    Death(Error),
    /// The departure of a rank. The reason of the departure may arrive during the delay.
    Departure(Rank),
    /// The time until which the link of a departed rank should have come.
    LateLink(Rank, Channel),
}

/// The state of a mesh, which the calling threads and the service thread share.
#[derive(Debug)]
pub(super) struct TcpMeshShared {
    pub(super) group: GroupId,
    pub(super) epoch: u32,
    pub(super) me: Rank,
    pub(super) security: LinkSecurity,
    pub(super) members: Arc<[TcpMember]>,
    /// The node leaders at first: the first rank of each node.
    pub(super) leaders: Vec<Rank>,
    pub(super) lanes: u8,
    pub(super) wait_policy: WaitPolicy,
    pub(super) domain: Arc<dyn SharedDomain>,
    /// The links of the process.
    pub(super) links: Arc<LinkTable>,
    /// All channels, indexed by peer and channel.
    pub(super) channel_pairs: Vec<ChannelPair>,
    pub(super) peer_states: Vec<AtomicU8>,
    /// For each peer, whether it has said that it leaves the group.
    pub(super) announced_departures: Mutex<Vec<bool>>,
    /// Ends a wait after a change that the descriptors of the links do not show.
    pub(super) wake: MeshWaker,
    pub(super) messages: Arc<MessageStreams>,
    /// The events that take effect later, each with its time.
    pub(super) delayed_events: Mutex<Vec<(Instant, DelayedPeerEvent)>>,
    pub(super) delayed_event_alarm: OnceLock<Alarm>,
    /// The alarm on which a leader sends heartbeats; set only on a leader, if heartbeats are on.
    pub(super) heartbeat_alarm: OnceLock<Alarm>,
    /// The ranks of other nodes whose activity this rank has queried, each with the answer, or
    /// `None` before the answer has arrived.
    pub(super) activity_answers: Mutex<BTreeMap<Rank, Option<String>>>,
    /// The current query for the labels of an operation, and the answer.
    pub(super) label_query: Mutex<Option<LabelQuery>>,
    /// The channels to the other leaders, indexed by node; empty on a rank that is not a leader.
    pub(super) control_channels: Mutex<Vec<Option<Arc<LeaderChannel>>>>,
    /// The first error of a connection attempt to another leader.
    pub(super) connect_error: Mutex<Option<Error>>,
    /// The doorbell of a caller that waits for a control connection or for an answer. It is
    /// notified when a control connection is added or fails, and when an answer arrives.
    pub(super) doorbell: Doorbell,
    pub(super) is_leader: AtomicBool,
    /// Whether this rank has joined, so that leaders may change.
    pub(super) has_joined: AtomicBool,
    /// The timing of heartbeats between the nodes; `None` if there are none.
    pub(super) timing: Option<HeartbeatTiming>,
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

    fn channel_count(&self) -> usize {
        usize::from(self.lanes) + 1
    }

    fn pair_index(&self, peer: Rank, channel: Channel) -> usize {
        let channel = match channel {
            Channel::Collective(lane) => usize::from(lane),
            Channel::PointToPoint => usize::from(self.lanes),
        };
        peer * self.channel_count() + channel
    }

    pub(super) fn channel_pair(&self, peer: Rank, channel: Channel) -> &ChannelPair {
        &self.channel_pairs[self.pair_index(peer, channel)]
    }

    /// Returns all kinds of channels.
    pub(super) fn channels(&self) -> impl Iterator<Item = Channel> {
        (0..self.lanes).map(Channel::Collective).chain([Channel::PointToPoint])
    }

    pub(super) fn link_key(&self, peer: Rank, channel: Channel) -> LinkKey {
        LinkKey { own: self.members[self.me].process, peer: self.members[peer].process, channel }
    }

    pub(super) fn ranks_to(&self, peer: Rank) -> ChannelRanks {
        ChannelRanks { group: self.group, from: self.me, to: peer }
    }

    /// Returns the channel from a peer.
    pub(super) fn incoming_channel(&self, peer: Rank, channel: Channel) -> &Arc<IncomingChannel> {
        self.channel_pair(peer, channel).incoming.get_or_init(|| {
            let user: Weak<dyn LinkUser> = self.weak.clone();
            self.links.channel((self.group, self.me), peer, channel, &user)
        })
    }

    /// Returns the channel from a peer, if it was used.
    pub(super) fn used_incoming_channel(
        &self,
        peer: Rank,
        channel: Channel,
    ) -> Option<&Arc<IncomingChannel>> {
        self.channel_pair(peer, channel).incoming.get()
    }

    /// Returns the link from a peer's process, if there is one.
    pub(super) fn incoming_link(&self, peer: Rank, channel: Channel) -> Option<Arc<IncomingLink>> {
        let mut known = lock(&self.channel_pair(peer, channel).incoming_link);
        if known.as_ref().is_none_or(|link| link.is_over.load(Ordering::Acquire)) {
            *known = self.links.incoming(&self.link_key(peer, channel));
        }
        known.clone()
    }

    /// Returns the channel from a peer, and its link if the peer has opened the channel. Takes no
    /// lock, except before that.
    pub(super) fn open_channel(
        &self,
        peer: Rank,
        channel: Channel,
    ) -> (&Arc<IncomingChannel>, Option<&Arc<IncomingLink>>) {
        let incoming = self.incoming_channel(peer, channel);
        let pair = self.channel_pair(peer, channel);
        if pair.open_link.get().is_none()
            && incoming.is_open()
            && let Some(link) = self.links.incoming(&self.link_key(peer, channel))
        {
            // Another thread can only have set the same link.
            drop(pair.open_link.set(link));
        }
        (incoming, pair.open_link.get())
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

    /// Makes the service thread follow changes of leaders, and send new updates.
    pub(super) fn wake_forward_task(&self) {
        self.forward_task.get().iter().for_each(|task| task.wake());
    }

    /// Follows changes of leaders, and sends the new updates to the other leaders. Called on the
    /// service thread.
    pub(super) fn forward_updates(&self) {
        let passing = lock(&self.forwarding);
        self.update_leaders();
        if self.is_leader() {
            self.send_updates();
        }
        drop(passing);
    }

    /// Sends the last updates and closes the control channels. If another thread is sending
    /// updates, waits for that thread first.
    pub(super) fn close_control_channels(&self) {
        let passing = lock(&self.forwarding);
        if self.is_leader() {
            self.send_updates();
        }
        let channels = std::mem::take(&mut *lock(&self.control_channels));
        channels.iter().flatten().for_each(|channel| channel.close(&self.links));
        drop(passing);
    }

    fn send_updates(&self) {
        // Hold this lock until the frames are sent. Another thread that finds no update left may
        // close the connections.
        let mut reported = lock(&self.reported_left);
        let frames = self.collect_updates(&mut reported);
        for channel in self.open_control_channels() {
            frames.iter().for_each(|frame| channel.send(frame));
        }
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

    /// Creates a connector for a link.
    ///
    /// # Errors
    /// `Connection` if no address is reachable.
    pub(super) fn new_connector(
        &self,
        to: Rank,
        purpose: ConnectionPurpose,
        retry_until: Option<Deadline>,
        handler: Weak<dyn PeerConnectHandler>,
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
        let target = PeerConnectTarget::between(hello, terms, own, peer, retry_until)?;
        Ok(PeerConnector::new(target, handler))
    }
}

impl TcpMeshShared {
    /// Returns the acceptor that answers for this rank after it has left.
    pub(super) fn former_rank(&self) -> FormerRank {
        let Self { epoch, me, lanes, ref members, ref security, ref links, .. } = *self;
        let (members, security, links) = (Arc::clone(members), security.clone(), Arc::clone(links));
        FormerRank { epoch, me, members, lanes, security, links }
    }
}

impl DoorbellListener for TcpMeshShared {
    fn on_doorbell(&self) {
        self.wake.wake();
        if self.domain.region().abort_record().is_set()
            && !self.is_failure_reported.swap(true, Ordering::AcqRel)
        {
            self.mark_culprit_died();
            self.messages.stop_counting();
            self.messages.wake_progress();
            self.doorbell.notify();
        }
        let has_updates = self.is_leader() && self.has_unforwarded_updates();
        if has_updates || self.has_leader_news() {
            self.wake_forward_task();
        }
    }
}
