//! [`TcpMesh`]: one rank's end of all streams of a group. Implements [`Endpoint`], whose functions
//! the algorithms and the matching engine call to send, receive and wait.

use super::failure_notice;
use super::hello::ConnectionPurpose;
use super::listener_registry::ListenerRegistry;
use super::mesh::{OutgoingStream, TcpMeshShared};
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
use crate::wait::service::DescriptorWatch;
use crate::wait::{WaitPolicy, io};
use serde_json::{Value, json};
use std::os::fd::AsFd as _;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// The time for which this rank retries an address that refuses the connection. If the peer has
/// died, the peer's node reports the death within this time.
const REFUSED_RETRY_TIME: Duration = Duration::from_millis(500);

/// The time for which a rank that leaves waits in total until the buffers of its sockets have room
/// for the records by which its encrypted streams end in order. If the time passes, the peers get
/// all data, and learn of the departure from the control connections only.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// This process's end of all streams of a group.
#[derive(Debug)]
pub struct TcpMesh {
    pub(super) shared: Arc<TcpMeshShared>,
    pub(super) registry: Arc<ListenerRegistry>,
    /// The memory of [`Endpoint::wait_for_streams`]. Each wait reuses it, so that a wait allocates
    /// nothing.
    pub(super) poll_scratch: Mutex<PollScratch>,
    /// The service thread's watches of the ends of streams.
    pub(super) watches: Vec<DescriptorWatch>,
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
    OnStream(Arc<SocketStream>),
    /// The `wake` event of the mesh reports the change, for example that the stream is connected.
    OnEvent,
}

impl TcpMesh {
    /// Starts to connect a stream at its first use. Returns 0, the number of bytes sent so far.
    fn begin_connect(&self, to: Rank, channel: Channel) -> Result<usize> {
        let connector = self.shared.new_connector(
            to,
            ConnectionPurpose::Stream(channel),
            Some(Deadline::after(REFUSED_RETRY_TIME)),
        )?;
        *lock(&self.shared.stream_pair(to, channel).outgoing) =
            OutgoingStream::Connecting(Arc::clone(&connector));
        // Do not hold the lock here: if the attempt fails inside this call, the failure handler
        // locks the same entry.
        connector.start();
        Ok(0)
    }

    fn wait_condition(&self, interest: &StreamInterest) -> WaitCondition {
        let shared = self.shared.as_ref();
        let slot = shared.stream_pair(interest.peer, interest.channel);
        let peer_state = shared.peer_state(interest.peer);
        if peer_state == HAS_DIED {
            // No more data arrives. The event reports the reason of the death.
            return WaitCondition::OnEvent;
        }
        // A peer that is leaving receives no more data, so an outgoing stream waits for the event.
        let (present, leaving) = (peer_state == PRESENT, peer_state == HAS_LEFT);
        match interest.direction {
            StreamDirection::In => match &*lock(&slot.incoming) {
                Some(stream) => WaitCondition::OnStream(Arc::clone(stream)),
                None if present || leaving => WaitCondition::OnEvent,
                None => WaitCondition::MaybeReady,
            },
            StreamDirection::Out if leaving => WaitCondition::OnEvent,
            StreamDirection::Out if !present => WaitCondition::MaybeReady,
            StreamDirection::Out => match &*lock(&slot.outgoing) {
                OutgoingStream::Open(stream) => WaitCondition::OnStream(Arc::clone(stream)),
                OutgoingStream::Connecting(_) => WaitCondition::OnEvent,
                OutgoingStream::Unused | OutgoingStream::Failed(_) => WaitCondition::MaybeReady,
            },
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
        let shared = self.shared.as_ref();
        if shared.peer_state(to) != PRESENT {
            return shared.result_after_end(to);
        }
        let out = lock(&shared.stream_pair(to, channel).outgoing);
        let has_ended = match &*out {
            OutgoingStream::Open(stream) => match stream.send_parts(parts) {
                Ok(sent) => return Ok(sent),
                Err(cause) => shared.classify_error(to, cause)?,
            },
            OutgoingStream::Connecting(_) => return Ok(0),
            OutgoingStream::Failed(error) => return Err(error.clone()),
            OutgoingStream::Unused => {
                drop(out);
                return self.begin_connect(to, channel);
            }
        };
        drop(out);
        if has_ended { shared.result_after_end(to) } else { Ok(0) }
    }

    fn is_held_by_receiver(&self, to: Rank, channel: Channel) -> bool {
        let out = lock(&self.shared.stream_pair(to, channel).outgoing);
        matches!(&*out, OutgoingStream::Open(stream) if stream.is_held_by_receiver())
    }

    fn try_receive(&self, from: Rank, channel: Channel, into: Dst<'_>) -> Result<usize> {
        let shared = self.shared.as_ref();
        if into.is_empty() {
            return Ok(0);
        }
        let mut incoming = lock(&shared.stream_pair(from, channel).incoming);
        let Some(stream) = incoming.as_ref() else {
            drop(incoming);
            return shared.result_after_end(from);
        };
        let has_ended = match stream.receive_into(into) {
            Ok(0) => {
                shared.mark_left(from);
                // Remove the stream from its entry. Otherwise every later wait would end
                // immediately, because the stream stays readable after its end.
                incoming.take().iter().for_each(|stream| stream.close_gracefully());
                true
            }
            Ok(got) => return Ok(got),
            Err(cause) => shared.classify_error(from, cause)?,
        };
        drop(incoming);
        if has_ended { shared.result_after_end(from) } else { Ok(0) }
    }

    fn wait_for_streams(&self, interests: &[StreamInterest], limit: Duration) {
        let shared = self.shared.as_ref();
        let doorbell = shared.domain.region().doorbell(shared.domain.rank());
        let mut scratch = lock(&self.poll_scratch);
        let PollScratch { poll_set: set, streams } = &mut *scratch;
        set.push(shared.wake.as_fd(), Interest::READ);
        doorbell.listen();
        let mut may_sleep = !shared.domain.region().abort_record().is_set();
        for interest in interests {
            match self.wait_condition(interest) {
                WaitCondition::MaybeReady => may_sleep = false,
                WaitCondition::OnEvent => {}
                WaitCondition::OnStream(stream) => {
                    let write = interest.direction == StreamDirection::Out;
                    may_sleep &= write || !stream.has_buffered_input();
                    set.push(stream.as_fd(), Interest { read: !write, write });
                    streams.push(stream);
                }
            }
        }
        if may_sleep && let Err(cause) = io::wait_for_any(set, limit) {
            crate::log!(LogLevel::Error, "cannot wait for peers: {cause}");
        }
        doorbell.stop_listening();
        // Clear the event: the caller polls all its conditions after this wait. If the event is not
        // raised, skip the system call that clears it.
        if set.is_first_ready() {
            shared.wake.clear();
        }
        set.clear();
        streams.clear();
    }

    fn collect_ready_peers(&self, peers: &mut Vec<Rank>) {
        self.shared.messages.ready(peers);
    }

    fn set_progress_handler(&self, handler: Weak<dyn ProgressHandler>) {
        if let Err(error) = self.shared.messages.set_progress_handler(handler) {
            self.shared.fail_all_nodes(&error);
        }
    }

    fn pause_progress_handler(&self, paused: bool) {
        self.shared.messages.pause(paused);
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
        let open = shared.stream_pairs.iter().find_map(|slot| match &*lock(&slot.outgoing) {
            OutgoingStream::Open(stream) => Some(socket::congestion_control(stream.as_ref())),
            _ => None,
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

impl Drop for TcpMesh {
    fn drop(&mut self) {
        let shared = self.shared.as_ref();
        shared.is_leaving.store(true, Ordering::Release);
        self.registry.unregister((shared.group, shared.me));
        shared.messages.stop();
        self.watches.clear();
        for connector in lock(&shared.connectors).drain(..) {
            connector.cancel();
        }
        shared.close_control_connections();
        let failure = shared.domain.failure();
        // The peers of a failed group do not wait for orderly ends.
        let limit = Deadline::after(if failure.is_some() { Duration::ZERO } else { END_TIMEOUT });
        for slot in &shared.stream_pairs {
            let out = std::mem::take(&mut *lock(&slot.outgoing));
            match &out {
                OutgoingStream::Connecting(connector) => connector.cancel(),
                OutgoingStream::Open(stream) => {
                    io::send_end(stream, &limit);
                    stream.close_gracefully();
                }
                OutgoingStream::Unused | OutgoingStream::Failed(_) => {}
            }
            if let Some(stream) = lock(&slot.incoming).take() {
                failure
                    .iter()
                    .for_each(|reason| failure_notice::send_reason(&stream, reason.clone()));
                stream.close_gracefully();
            }
        }
    }
}
