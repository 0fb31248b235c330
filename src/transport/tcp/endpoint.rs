//! [`TcpMesh`]: one rank's end of all streams of a group. Implements [`Endpoint`], whose functions
//! the algorithms and the matching engine call to send, receive and wait.

use super::control_frame::ControlFrame;
use super::hello::ConnectionPurpose;
use super::incoming_link::IncomingLink;
use super::link_frame::Frame;
use super::link_owner::LinkOwner as _;
use super::link_user::LinkUser;
use super::listener_registry::ListenerRegistry;
use super::mesh::TcpMeshShared;
use super::outgoing_channel::SendOutcome;
use super::outgoing_link::OutgoingLink;
use super::peer_state::{HAS_DIED, HAS_LEFT, PRESENT};
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use crate::base::ids::{Rank, WorldSize};
use crate::base::label::Label;
use crate::base::log::LogLevel;
use crate::base::sync::lock;
use crate::sys::poll::{Interest, PollSet};
use crate::sys::socket;
use crate::sys::stream::SocketStream;
use crate::transport::{
    Channel, Endpoint, PeerName, ProgressHandler, StreamDirection, StreamInterest,
};
use crate::wait::{WaitPolicy, io};
use serde_json::{Value, json};
use std::os::fd::AsFd as _;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// The time for which this rank retries an address that refuses the connection. If the peer has
/// died, the peer's node reports the death within this time.
const REFUSED_RETRY_TIME: Duration = Duration::from_millis(500);

/// This process's end of all streams of a group.
#[derive(Debug)]
pub struct TcpMesh {
    pub(super) shared: Arc<TcpMeshShared>,
    pub(super) registry: Arc<ListenerRegistry>,
    /// The memory of [`Endpoint::wait_for_streams`]. Each wait reuses it, so that a wait allocates
    /// nothing.
    pub(super) poll_scratch: Mutex<PollScratch>,
}

/// Reusable memory for one wait.
#[derive(Debug, Default)]
pub(super) struct PollScratch {
    poll_set: PollSet,
    /// The streams in the poll set. They are kept here so that their descriptors stay open.
    streams: Vec<Arc<SocketStream>>,
}

/// The condition that ends the wait for one [`StreamInterest`].
enum WaitCondition {
    /// The stream may be ready now, so the wait must not sleep.
    MaybeReady,
    /// The stream is ready when this socket is readable or writable.
    OnStream(Arc<SocketStream>, Interest),
    /// The `wake` event of the mesh reports the change, for example that the stream is connected.
    OnEvent,
}

impl TcpMesh {
    /// Starts to connect a link at its first use. Returns 0, the number of bytes sent so far.
    fn begin_connect(&self, link: &OutgoingLink, to: Rank, channel: Channel) -> Result<usize> {
        let (purpose, limit) =
            (ConnectionPurpose::Stream(channel), Deadline::after(REFUSED_RETRY_TIME));
        link.connect(|handler| self.shared.new_connector(to, purpose, Some(limit), handler))?;
        Ok(0)
    }

    fn wait_condition(&self, interest: &StreamInterest) -> WaitCondition {
        let shared = self.shared.as_ref();
        let (peer, channel) = (interest.peer, interest.channel);
        let peer_state = shared.peer_state(peer);
        if peer_state == HAS_DIED {
            // No more data arrives. The event reports the reason of the death.
            return WaitCondition::OnEvent;
        }
        // A peer that is leaving receives no more data, so an outgoing stream waits for the event.
        let (present, leaving) = (peer_state == PRESENT, peer_state == HAS_LEFT);
        let on_input = |link: Option<Arc<IncomingLink>>| match link {
            Some(link) if !link.is_suspended() => match link.stream() {
                stream if stream.has_buffered_input() => WaitCondition::MaybeReady,
                stream => WaitCondition::OnStream(stream, Interest::READ),
            },
            _ => WaitCondition::OnEvent,
        };
        match interest.direction {
            StreamDirection::In => {
                let incoming = shared.incoming_channel(peer, channel);
                let link = shared.incoming_link(peer, channel);
                if incoming.has_bytes() {
                    WaitCondition::MaybeReady
                } else if incoming.is_drained() || link.is_none() {
                    let awaits_event = present || leaving;
                    if awaits_event { WaitCondition::OnEvent } else { WaitCondition::MaybeReady }
                } else {
                    on_input(link)
                }
            }
            StreamDirection::Out if leaving => WaitCondition::OnEvent,
            StreamDirection::Out if !present => WaitCondition::MaybeReady,
            StreamDirection::Out => {
                let slot = lock(&shared.channel_pair(peer, channel).outgoing);
                let Some((link, outgoing)) = &slot.channel else {
                    return WaitCondition::MaybeReady;
                };
                match link.stream() {
                    _ if slot.error.is_some() => WaitCondition::MaybeReady,
                    // The grant arrives on the link from the peer.
                    Some(_) if !link.is_granted(outgoing) => {
                        on_input(shared.incoming_link(peer, channel))
                    }
                    Some(stream) => WaitCondition::OnStream(stream, Interest::WRITE),
                    None if link.is_connecting() || link.has_ended() => WaitCondition::OnEvent,
                    None => WaitCondition::MaybeReady,
                }
            }
        }
    }

    /// Sends bytes of the parts on a stream. The link may keep a view of `lent`, one of the parts,
    /// until [`Endpoint::end_loans`].
    fn send(
        &self,
        to: Rank,
        channel: Channel,
        parts: &[Src<'_>],
        lent: Src<'static>,
    ) -> Result<usize> {
        let shared = self.shared.as_ref();
        if shared.peer_state(to) != PRESENT {
            return shared.result_after_end(to);
        }
        let mut slot = lock(&shared.channel_pair(to, channel).outgoing);
        if let Some(error) = &slot.error {
            return Err(error.clone());
        }
        let (link, outgoing) = slot.channel.get_or_insert_with(|| {
            let link = shared.links.acquire(shared.link_key(to, channel));
            let user: Weak<dyn LinkUser> = shared.weak.clone();
            let outgoing = link.new_channel(shared.ranks_to(to), user);
            (link, outgoing)
        });
        match link.send(outgoing, parts, lent) {
            SendOutcome::Sent(sent) => {
                if channel == Channel::PointToPoint
                    && sent < parts.iter().map(|part| part.len()).sum()
                    && shared.messages.mark_blocked(to)
                {
                    link.watch_for_room(outgoing);
                }
                Ok(sent)
            }
            SendOutcome::NotGranted => {
                drop(slot);
                shared.incoming_link(to, channel).iter().for_each(|link| link.drain());
                Ok(0)
            }
            SendOutcome::Unconnected => {
                let link = Arc::clone(link);
                drop(slot);
                self.begin_connect(&link, to, channel)
            }
            SendOutcome::Ended => {
                drop(slot);
                shared.result_after_end(to)
            }
        }
    }
}

impl Endpoint for TcpMesh {
    fn rank(&self) -> Rank {
        self.shared.me
    }

    fn size(&self) -> WorldSize {
        self.shared.rank_count()
    }

    fn peer(&self, rank: Rank) -> &PeerName {
        self.shared.name(rank)
    }

    fn collective_streams(&self) -> u8 {
        self.shared.lanes
    }

    fn wait_policy(&self) -> WaitPolicy {
        self.shared.wait_policy
    }

    fn try_send(&self, to: Rank, channel: Channel, parts: &[Src<'_>]) -> Result<usize> {
        self.send(to, channel, parts, Src::empty())
    }

    fn try_send_lent(
        &self,
        to: Rank,
        channel: Channel,
        head: Src<'_>,
        payload: Src<'static>,
    ) -> Result<usize> {
        self.send(to, channel, &[head, payload], payload)
    }

    fn end_loans(&self, to: Rank, channel: Channel) {
        let slot = lock(&self.shared.channel_pair(to, channel).outgoing);
        if let Some((link, _)) = &slot.channel {
            link.end_loans();
        }
    }

    fn is_held_by_receiver(&self, to: Rank, channel: Channel) -> bool {
        let slot = lock(&self.shared.channel_pair(to, channel).outgoing);
        slot.channel.as_ref().is_some_and(|(link, outgoing)| {
            !link.is_granted(outgoing)
                || link.stream().is_some_and(|stream| stream.is_held_by_receiver())
        })
    }

    fn try_receive(&self, from: Rank, channel: Channel, into: Dst<'_>) -> Result<usize> {
        let shared = self.shared.as_ref();
        if into.is_empty() {
            return Ok(0);
        }
        let (incoming, open_link) = shared.open_channel(from, channel);
        let unopened_link = match open_link {
            Some(_) => None,
            // The head that opens the channel may have arrived.
            None => shared.incoming_link(from, channel),
        };
        if let Some(link) = open_link.or(unopened_link.as_ref()) {
            let got = link.receive(incoming, into);
            if got > 0 {
                return Ok(got);
            }
            // The connection that replaces a broken one may bring the head.
            let may_open = || link.is_suspended() || !shared.is_never_opened(from, channel);
            if !link.is_over.load(Ordering::Acquire)
                && !incoming.is_drained()
                && (open_link.is_some() || may_open())
            {
                return Ok(0);
            }
        } else if !incoming.is_drained()
            && !incoming.is_open()
            && !incoming.has_bytes()
            && shared.may_still_open(from, channel)
        {
            return Ok(0);
        }
        // A link that has ended may have left bytes.
        let (taken, grant) = incoming.take(into);
        if taken > 0 {
            let key = shared.link_key(from, channel);
            grant.into_iter().for_each(|grant| shared.links.send_grant(&key, grant));
            return Ok(taken);
        }
        shared.result_after_end(from)
    }

    fn wait_for_streams(&self, interests: &[StreamInterest], limit: Duration) {
        let shared = self.shared.as_ref();
        let event = match shared.links.take_event() {
            Ok(event) => event,
            Err(error) => {
                crate::log!(LogLevel::Error, "cannot wait for peers: {error}");
                return;
            }
        };
        let doorbell = shared.domain.region().doorbell(shared.domain.rank());
        let mut scratch = lock(&self.poll_scratch);
        let PollScratch { poll_set: set, streams } = &mut *scratch;
        set.push(event.as_fd(), Interest::READ);
        shared.wake.begin_wait(&event);
        doorbell.listen();
        let mut may_sleep = !shared.domain.region().abort_record().is_set();
        for interest in interests {
            match self.wait_condition(interest) {
                WaitCondition::MaybeReady => may_sleep = false,
                WaitCondition::OnEvent => {}
                WaitCondition::OnStream(stream, interest) => {
                    set.push(stream.as_fd(), interest);
                    streams.push(stream);
                }
            }
        }
        if may_sleep
            && !shared.wake.is_woken()
            && let Err(cause) = io::wait_for_any(set, limit)
        {
            crate::log!(LogLevel::Error, "cannot wait for peers: {cause}");
        }
        doorbell.stop_listening();
        shared.wake.end_wait();
        set.clear();
        streams.clear();
        event.clear();
        shared.links.return_event(event);
    }

    fn collect_ready_peers(&self, peers: &mut Vec<Rank>) {
        self.shared.messages.ready(peers);
    }

    fn set_progress_handler(&self, handler: Weak<dyn ProgressHandler>) {
        self.shared.messages.set_progress_handler(handler);
    }

    fn pause_progress_handler(&self, paused: bool) {
        let has_failed = self.shared.domain.region().abort_record().is_set();
        self.shared.messages.pause(paused, !has_failed);
        if !paused {
            for peer in self.shared.messages.take_blocked() {
                let slot = lock(&self.shared.channel_pair(peer, Channel::PointToPoint).outgoing);
                slot.channel.iter().for_each(|(link, outgoing)| link.watch_for_room(outgoing));
            }
        }
    }

    fn query_activities(&self, ranks: &[Rank]) -> Vec<Option<String>> {
        self.shared.query_activity(ranks)
    }

    fn labels(&self, rank: Rank, sequence: u64) -> Vec<Label> {
        self.shared.query_labels(rank, sequence)
    }

    fn describe(&self) -> Value {
        let shared = self.shared.as_ref();
        let advert = &shared.members[shared.me].advert;
        let open = shared.channel_pairs.iter().find_map(|pair| {
            let stream = lock(&pair.outgoing).channel.as_ref()?.0.stream()?;
            Some(socket::congestion_control(stream.as_ref()))
        });
        let addresses = |list: &[super::advert::RailAddress]| -> Vec<String> {
            list.iter().map(|rail_address| rail_address.address.to_string()).collect()
        };
        json!({
            "addresses": addresses(&advert.routable),
            "addresses_near": addresses(&advert.same_netns),
            "why": advert.reason,
            "lanes": shared.lanes,
            "congestion_control": open,
        })
    }

    fn failure(&self) -> Option<Error> {
        self.shared.domain.failure()
    }

    fn fail(&self, error: &Error) {
        self.shared.domain.fail(error);
    }
}

impl TcpMesh {
    /// Tells a peer that this rank leaves the group, on all links to the peer's process.
    fn announce_departure(&self, peer: Rank, reason: &[u8]) {
        let shared = self.shared.as_ref();
        let frame = Frame::Leave { ranks: shared.ranks_to(peer), payload: reason.len() };
        let mut has_told = false;
        for channel in shared.channels() {
            let slot = std::mem::take(&mut *lock(&shared.channel_pair(peer, channel).outgoing));
            let key = shared.link_key(peer, channel);
            let used = slot.channel.map(|(link, _)| link);
            let is_known = || shared.links.outgoing(&key).is_some();
            let Some(link) = used.or_else(|| is_known().then(|| shared.links.acquire(key))) else {
                continue;
            };
            has_told = true;
            link.end_loans();
            link.send_frame(&frame, reason);
            shared.links.release(&link);
        }
        let has_sent = |channel: &Channel| {
            shared.used_incoming_channel(peer, *channel).is_some_and(|it| it.is_open())
        };
        // A peer that has sent bytes awaits that this rank takes them.
        if let Some(channel) = shared.channels().find(has_sent).filter(|_| !has_told) {
            let link = shared.links.acquire(shared.link_key(peer, channel));
            link.send_frame(&frame, reason);
            if let Err(error) = self.begin_connect(&link, peer, channel) {
                crate::log!(LogLevel::Debug, "cannot report that this rank leaves: {error}");
            }
            shared.links.release_after(&link, true);
        }
    }
}

impl Drop for TcpMesh {
    fn drop(&mut self) {
        let shared = self.shared.as_ref();
        shared.is_leaving.store(true, Ordering::Release);
        self.registry.retire((shared.group, shared.me), Arc::new(shared.former_rank()));
        shared.messages.stop();
        shared.close_control_channels();
        shared.cancel_late_link_checks();
        let mut reason = Vec::new();
        if let Some(failure) = shared.domain.failure() {
            ControlFrame::Abort(failure).encode(&mut reason);
        }
        // First, so that the answer to each query is that this rank has left.
        shared.links.unregister((shared.group, shared.me));
        for peer in (0..shared.rank_count()).filter(|&peer| peer != shared.me) {
            self.announce_departure(peer, &reason);
        }
    }
}
