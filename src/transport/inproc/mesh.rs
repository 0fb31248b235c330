//! [`Endpoint`] for threads: bounded byte queues between each two ranks of a group, whether the
//! ranks are on the same node or on different nodes.

use crate::base::buffer::{Dst, Src};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, RankFault, Result};
use crate::base::ids::{GroupId, Rank, WorldSize};
use crate::base::sync::lock;
use crate::transport::{
    Channel, DoorbellListener, Endpoint, PeerName, ProgressHandler, SharedDomain, StreamDirection,
    StreamInterest,
};
use crate::wait::doorbell::Doorbell;
use crate::wait::service_task::ServiceTask;
use crate::wait::{WaitPolicy, wait_until};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, Weak};
use std::time::Duration;

/// The capacity of one stream in bytes.
const STREAM_BYTES: usize = 64 << 10;

/// The number of collective streams. With more than one stream, messages are spread over streams as
/// they are between hosts, so that tests cover this.
const LANES: u8 = 2;

/// The state that the members of one group share.
#[derive(Debug)]
struct InprocMeshHub {
    ranks: Vec<InprocMeshRank>,
}

/// The state of one rank that the other members access.
#[derive(Debug, Default)]
struct InprocMeshRank {
    /// The bytes that were sent to this rank, by sender and channel.
    receive_queues: Mutex<BTreeMap<(Rank, Channel), VecDeque<u8>>>,
    /// The doorbell on which the rank waits. It is notified when bytes arrive, when room becomes
    /// free, or when a rank leaves.
    doorbell: Doorbell,
    has_left: AtomicBool,
    member: Mutex<Option<Weak<InprocMeshShared>>>,
}

/// The shared state of each group of this process, while at least one member exists.
static HUBS: LazyLock<Mutex<HashMap<GroupId, Weak<InprocMeshHub>>>> = LazyLock::new(Mutex::default);

/// One rank's end of all streams.
#[derive(Debug)]
pub struct InprocMesh {
    shared: Arc<InprocMeshShared>,
}

#[derive(Debug)]
struct InprocMeshShared {
    hub: Arc<InprocMeshHub>,
    domain: Arc<dyn SharedDomain>,
    rank: Rank,
    peers: Vec<PeerName>,
    wait_policy: WaitPolicy,
    /// Whether the failure of this rank's node has been forwarded to all nodes.
    is_failure_forwarded: AtomicBool,
    progress_state: Mutex<InprocProgressState>,
    progress_task: ServiceTask,
}

/// The state of the point-to-point streams for the progress handler.
#[derive(Debug, Default)]
struct InprocProgressState {
    progress_handler: Option<Weak<dyn ProgressHandler>>,
    is_paused: bool,
    /// The peers whose streams may make progress.
    ready: BTreeSet<Rank>,
    /// The peers to which the last send was not complete, because the stream was full.
    full: BTreeSet<Rank>,
}

impl InprocMesh {
    /// Joins the streams of a group as `rank`. `peers` has the name of each member, and `domain` is
    /// the domain of this rank's node.
    ///
    /// # Errors
    /// `System`.
    pub fn join(
        group: GroupId,
        rank: Rank,
        peers: Vec<PeerName>,
        domain: Arc<dyn SharedDomain>,
        wait_policy: WaitPolicy,
    ) -> Result<Self> {
        let size = peers.len();
        let hub = InprocMeshHub::get_or_create(group, size);
        let weak_hub = Arc::downgrade(&hub);
        let call_progress_handler = move || {
            let hub = weak_hub.upgrade();
            let member = hub.and_then(|hub| hub.member(rank));
            member.into_iter().for_each(|shared| shared.call_progress_handler());
        };
        let shared = Arc::new(InprocMeshShared {
            hub,
            domain,
            rank,
            peers,
            wait_policy,
            is_failure_forwarded: AtomicBool::new(false),
            // All peers are ready at first, because some of them may have sent messages already.
            progress_state: Mutex::new(InprocProgressState {
                ready: (0..size).collect(),
                ..InprocProgressState::default()
            }),
            progress_task: ServiceTask::new(call_progress_handler)?,
        });
        *lock(&shared.hub.ranks[rank].member) = Some(Arc::downgrade(&shared));
        let listener: Arc<dyn DoorbellListener> = shared.clone();
        shared.domain.add_listener(Arc::downgrade(&listener));
        shared.domain.region().doorbell(shared.domain.rank()).listen();
        Ok(Self { shared })
    }
}

impl InprocMeshHub {
    fn get_or_create(group: GroupId, size: WorldSize) -> Arc<Self> {
        let mut hubs = lock(&HUBS);
        hubs.retain(|_, hub| hub.strong_count() > 0);
        if let Some(hub) = hubs.get(&group).and_then(Weak::upgrade) {
            return hub;
        }
        let hub = Arc::new(Self { ranks: (0..size).map(|_| InprocMeshRank::default()).collect() });
        hubs.insert(group, Arc::downgrade(&hub));
        hub
    }

    fn member(&self, rank: Rank) -> Option<Arc<InprocMeshShared>> {
        lock(&self.ranks[rank].member).as_ref().and_then(Weak::upgrade)
    }

    /// Notifies `rank` that its stream to or from `peer` may make progress.
    fn notify_rank(&self, rank: Rank, peer: Rank, channel: Channel, direction: StreamDirection) {
        self.ranks[rank].doorbell.notify();
        if channel == Channel::PointToPoint
            && let Some(member) = self.member(rank)
        {
            member.mark_ready(peer, direction);
        }
    }
}

impl InprocMeshShared {
    /// Marks the point-to-point stream to or from `peer` as ready, and wakes the progress handler.
    /// An outgoing stream is ready only if an earlier send found it full.
    fn mark_ready(&self, peer: Rank, direction: StreamDirection) {
        let mut state = lock(&self.progress_state);
        if direction == StreamDirection::Out && !state.full.remove(&peer) {
            return;
        }
        state.ready.insert(peer);
        if !state.is_paused {
            self.progress_task.wake();
        }
    }

    fn call_progress_handler(&self) {
        let progress_handler = lock(&self.progress_state).progress_handler.clone();
        progress_handler
            .and_then(|progress_handler| progress_handler.upgrade())
            .into_iter()
            .for_each(|it| it.on_streams_ready());
    }

    fn left_error(&self, peer: Rank) -> Error {
        let message = format!("{} has left the group", self.peers[peer]);
        Error::new(ErrorKind::PeerFailed, message).with_culprit(peer).with_fault(RankFault::Left)
    }

    fn others(&self) -> impl Iterator<Item = Rank> + use<> {
        let rank = self.rank;
        (0..self.peers.len()).filter(move |&peer| peer != rank)
    }
}

impl DoorbellListener for InprocMeshShared {
    fn on_doorbell(&self) {
        self.hub.ranks[self.rank].doorbell.notify();
        let Some(error) = self.domain.failure() else { return };
        if self.is_failure_forwarded.swap(true, Ordering::AcqRel) {
            return;
        }
        let members = self.others().filter_map(|peer| self.hub.member(peer));
        members.for_each(|member| member.domain.fail(&error));
        self.progress_task.wake();
    }
}

impl Drop for InprocMesh {
    fn drop(&mut self) {
        let InprocMeshShared { hub, domain, rank, .. } = self.shared.as_ref();
        domain.region().doorbell(domain.rank()).stop_listening();
        hub.ranks[*rank].has_left.store(true, Ordering::Release);
        for peer in self.shared.others() {
            hub.notify_rank(peer, *rank, Channel::PointToPoint, StreamDirection::In);
        }
    }
}

impl Endpoint for InprocMesh {
    fn rank(&self) -> Rank {
        self.shared.rank
    }

    fn size(&self) -> WorldSize {
        self.shared.peers.len()
    }

    fn peer(&self, rank: Rank) -> &PeerName {
        &self.shared.peers[rank]
    }

    fn collective_streams(&self) -> u8 {
        LANES
    }

    fn wait_policy(&self) -> WaitPolicy {
        self.shared.wait_policy
    }

    fn try_send(&self, to: Rank, channel: Channel, parts: &[Src<'_>]) -> Result<usize> {
        let InprocMeshShared { hub, rank, .. } = self.shared.as_ref();
        let receiver = &hub.ranks[to];
        if receiver.has_left.load(Ordering::Acquire) {
            return Err(self.shared.left_error(to));
        }
        if channel == Channel::PointToPoint {
            // Insert the peer before the attempt to send. If the peer makes room after the attempt,
            // it finds the entry and marks this stream as ready.
            lock(&self.shared.progress_state).full.insert(to);
        }
        let mut sent = 0;
        let mut all = true;
        let mut queues = lock(&receiver.receive_queues);
        let stream = queues.entry((*rank, channel)).or_default();
        for part in parts {
            let len = part.len().min(STREAM_BYTES - stream.len());
            let mut bytes = vec![0; len];
            Dst::from(bytes.as_mut_slice()).copy_from(part.slice(0, len));
            stream.extend(bytes);
            sent += len;
            all &= len == part.len();
        }
        drop(queues);
        if all && channel == Channel::PointToPoint {
            lock(&self.shared.progress_state).full.remove(&to);
        }
        if sent > 0 {
            hub.notify_rank(to, *rank, channel, StreamDirection::In);
        }
        Ok(sent)
    }

    fn try_receive(&self, from: Rank, channel: Channel, into: Dst<'_>) -> Result<usize> {
        let InprocMeshShared { hub, rank, .. } = self.shared.as_ref();
        let has_left = hub.ranks[from].has_left.load(Ordering::Acquire);
        let mut queues = lock(&hub.ranks[*rank].receive_queues);
        let stream = queues.entry((from, channel)).or_default();
        let bytes: Vec<u8> = stream.drain(..stream.len().min(into.len())).collect();
        drop(queues);
        if bytes.is_empty() && has_left && !into.is_empty() {
            return Err(self.shared.left_error(from));
        }
        into.slice(0, bytes.len()).copy_from(Src::from(bytes.as_slice()));
        if !bytes.is_empty() {
            hub.notify_rank(from, *rank, channel, StreamDirection::Out);
        }
        Ok(bytes.len())
    }

    fn wait_for_streams(&self, interests: &[StreamInterest], limit: Duration) {
        let InprocMeshShared { hub, rank, .. } = self.shared.as_ref();
        let is_ready = |interest: &StreamInterest| {
            let (owner, other) = match interest.direction {
                StreamDirection::In => (*rank, interest.peer),
                StreamDirection::Out => (interest.peer, *rank),
            };
            let queues = lock(&hub.ranks[owner].receive_queues);
            let held = queues.get(&(other, interest.channel)).map_or(0, VecDeque::len);
            hub.ranks[interest.peer].has_left.load(Ordering::Acquire)
                || match interest.direction {
                    StreamDirection::In => held > 0,
                    StreamDirection::Out => held < STREAM_BYTES,
                }
        };
        let ready = || interests.iter().any(is_ready).then_some(());
        let limit = Deadline::after(limit);
        // The outcome of the wait does not matter: the caller polls the streams itself.
        drop(wait_until(
            &hub.ranks[*rank].doorbell,
            WaitPolicy::SLEEP_SOON,
            &limit,
            || self.failure(),
            ready,
        ));
    }

    fn collect_ready_peers(&self, peers: &mut Vec<Rank>) {
        peers.extend(std::mem::take(&mut lock(&self.shared.progress_state).ready));
    }

    fn set_progress_handler(&self, progress_handler: Weak<dyn ProgressHandler>) {
        lock(&self.shared.progress_state).progress_handler = Some(progress_handler);
        self.shared.progress_task.wake();
    }

    fn pause_progress_handler(&self, paused: bool) {
        lock(&self.shared.progress_state).is_paused = paused;
        if !paused {
            self.shared.progress_task.wake();
        }
    }

    fn query_activities(&self, ranks: &[Rank]) -> Vec<Option<String>> {
        // All ranks are threads of this process, so they have the same activity.
        let domain = &self.shared.domain;
        ranks.iter().map(|_| Some(domain.last_activity(domain.rank()))).collect()
    }

    fn describe(&self) -> Value {
        json!({ "lanes": LANES })
    }

    fn failure(&self) -> Option<Error> {
        self.shared.domain.failure()
    }

    fn fail(&self, error: &Error) {
        self.shared.domain.fail(error);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::host;
    use crate::transport::inproc::InprocDomain;
    use crate::transport::{RegionGeometry, ReusePolicy};

    const WAIT_POLICY: WaitPolicy = WaitPolicy::SLEEP_SOON;

    fn name(rank: Rank) -> PeerName {
        PeerName::new(rank, host::pid(), "here".into())
    }

    /// Joins as a rank that is alone on its node.
    fn join(group: GroupId, rank: Rank, ranks: WorldSize) -> InprocMesh {
        let geometry = RegionGeometry::within_host(1, 4096, ReusePolicy::WhileCached);
        let domain =
            InprocDomain::join(group, rank, 0, vec![name(rank)], geometry, WAIT_POLICY).unwrap();
        InprocMesh::join(group, rank, (0..ranks).map(name).collect(), Arc::new(domain), WAIT_POLICY)
            .unwrap()
    }

    const STREAM: Channel = Channel::Collective(0);

    #[test]
    fn bytes_stay_in_order_and_full_stream_accepts_none() {
        let group = host::random_nonce().unwrap();
        let (a, b) = (join(group, 0, 2), join(group, 1, 2));
        let text = vec![7; STREAM_BYTES];
        let sent = a.try_send(1, STREAM, &[Src::from(&b"one"[..]), Src::from(text.as_slice())]);
        assert_eq!(sent.unwrap(), STREAM_BYTES);
        assert_eq!(a.try_send(1, STREAM, &[Src::from(&b"x"[..])]).unwrap(), 0);
        let mut bytes = [0; 4];
        assert_eq!(b.try_receive(0, STREAM, Dst::from(&mut bytes[..])).unwrap(), 4);
        assert_eq!(&bytes, b"one\x07");
        assert_eq!(a.try_send(1, STREAM, &[Src::from(&b"xxxxx"[..])]).unwrap(), 4);
        assert_eq!(b.try_receive(0, Channel::PointToPoint, Dst::from(&mut bytes[..])).unwrap(), 0);
    }

    #[test]
    fn bytes_of_a_leaving_rank_arrive_before_the_error() {
        let group = host::random_nonce().unwrap();
        let (a, b) = (join(group, 0, 2), join(group, 1, 2));
        a.try_send(1, STREAM, &[Src::from(&b"bye"[..])]).unwrap();
        drop(a);
        let mut bytes = [0; 8];
        assert_eq!(b.try_receive(0, STREAM, Dst::from(&mut bytes[..])).unwrap(), 3);
        let left_error = b.try_receive(0, STREAM, Dst::from(&mut bytes[..])).unwrap_err();
        assert_eq!((left_error.kind(), left_error.culprit()), (ErrorKind::PeerFailed, Some(0)));
        assert_eq!(b.try_send(0, STREAM, &[]).unwrap_err().kind(), ErrorKind::PeerFailed);
    }

    #[test]
    fn failure_reaches_all_nodes_and_ends_waits() {
        let group = host::random_nonce().unwrap();
        let (a, b) = (join(group, 0, 2), join(group, 1, 2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let interest =
                    StreamInterest { peer: 0, channel: STREAM, direction: StreamDirection::In };
                b.wait_for_streams(&[interest], Duration::from_secs(20));
                assert_eq!(b.failure().unwrap().message(), "stop");
            });
            a.fail(&Error::new(ErrorKind::Aborted, "stop"));
        });
    }

    #[derive(Debug)]
    struct InprocAttendantCounter(Doorbell, std::sync::atomic::AtomicU64);

    impl ProgressHandler for InprocAttendantCounter {
        fn on_streams_ready(&self) {
            self.1.fetch_add(1, Ordering::Release);
            self.0.notify();
        }
    }

    #[test]
    fn attendant_is_called_for_bytes_and_for_space() {
        let group = host::random_nonce().unwrap();
        let (a, b) = (join(group, 0, 2), join(group, 1, 2));
        let count = |mesh: &InprocMesh| {
            let counter = Arc::new(InprocAttendantCounter(Doorbell::default(), Default::default()));
            let progress_handler: Arc<dyn ProgressHandler> = counter.clone();
            mesh.set_progress_handler(Arc::downgrade(&progress_handler));
            counter
        };
        let (at_a, at_b) = (count(&a), count(&b));
        let wait = |mesh: &InprocMesh, counter: &InprocAttendantCounter, peer| {
            let ready = || {
                let mut peers = Vec::new();
                mesh.collect_ready_peers(&mut peers);
                peers.contains(&peer).then_some(())
            };
            let calls =
                || (counter.1.load(Ordering::Acquire) > 0).then_some(()).and_then(|()| ready());
            wait_until(&counter.0, WAIT_POLICY, &Deadline::after_ms(10_000), || None, calls)
                .unwrap();
        };
        // All peers are reported as ready at the beginning.
        wait(&a, &at_a, 1);
        wait(&b, &at_b, 0);
        let full = vec![1; STREAM_BYTES + 1];
        a.try_send(1, Channel::PointToPoint, &[Src::from(full.as_slice())]).unwrap();
        // Bytes on another stream to the same peer do not call the handler.
        a.try_send(1, STREAM, &[Src::from(&b"x"[..])]).unwrap();
        wait(&b, &at_b, 0);
        let mut bytes = [0; 100];
        b.try_receive(0, Channel::PointToPoint, Dst::from(&mut bytes[..])).unwrap();
        wait(&a, &at_a, 1);
    }
}
