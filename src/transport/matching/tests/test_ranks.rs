//! Ranks for tests, and messages whose memory outlives every test.

use crate::base::buffer::{Dst, Src};
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::{ErrorKind, Result};
use crate::base::ids::{GroupId, Rank, WorldSize};
use crate::sys::host;
use crate::transport::inproc::{InprocDomain, InprocMesh};
use crate::transport::matching::MatchingEngine;
use crate::transport::matching::state::MatchingState;
use crate::transport::neighbour::{NeighbourMember, NeighbourRegistry};
use crate::transport::shm::{self, ShmJoinConfig, ShmMember as Who};
use crate::transport::{
    Completion, Delivery, Endpoint, HeartbeatConfig, PeerName, PointToPoint, ReceiveBuffer,
    ReceiveRequest, RegionGeometry, ReusePolicy, SendRequest, SharedDomain,
};
use crate::wait::WaitPolicy;
use crate::wait::doorbell::Doorbell;
use crate::wait::wait_until;
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub(super) const TEST_TIMEOUT_MS: u64 = 60_000;

pub(super) const TEST_WAIT_POLICY: WaitPolicy =
    WaitPolicy { spin_time: Duration::from_micros(50), is_oversubscribed: false };

/// The distribution of ranks over nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeSpread {
    /// All ranks are on one node.
    OneNode,
    /// All ranks are on one node. Their domain is a shared segment as between processes, and memory
    /// is reused after it has left the cache.
    OneSegment,
    /// Each rank is on its own node.
    NodePerRank,
    /// Two ranks are on each node.
    TwoPerNode,
}

pub(super) const NODE_SPREADS: [NodeSpread; 4] =
    [NodeSpread::OneNode, NodeSpread::OneSegment, NodeSpread::NodePerRank, NodeSpread::TwoPerNode];

/// A rank for tests.
#[derive(Debug)]
pub(super) struct TestRank {
    pub(super) engine: MatchingEngine,
    pub(super) endpoint: Option<Arc<dyn Endpoint>>,
    pub(super) domain: Arc<dyn SharedDomain>,
}

pub(super) fn peer_name(rank: Rank) -> PeerName {
    PeerName::new(rank, host::pid(), "here".into())
}

pub(super) fn test_geometry(ranks: WorldSize) -> RegionGeometry {
    RegionGeometry::within_host(ranks, 4096, ReusePolicy::WhileCached)
}

/// Creates the ranks of a new group.
pub(super) fn create_ranks(spread: NodeSpread, ranks: WorldSize) -> Vec<TestRank> {
    let group = host::random_nonce().unwrap();
    let per_node = match spread {
        NodeSpread::OneNode | NodeSpread::OneSegment => ranks,
        NodeSpread::NodePerRank => 1,
        NodeSpread::TwoPerNode => 2,
    };
    let domains = if spread == NodeSpread::OneSegment {
        join_segment(group, ranks)
    } else {
        let join = |rank: Rank| {
            let node = rank / per_node;
            let last = ranks.min((node + 1) * per_node);
            let peers: Vec<_> = (node * per_node..last).map(peer_name).collect();
            let geometry = test_geometry(peers.len());
            let domain =
                InprocDomain::join(group, node, rank % per_node, peers, geometry, TEST_WAIT_POLICY);
            let domain: Arc<dyn SharedDomain> = Arc::new(domain.unwrap());
            domain
        };
        (0..ranks).map(join).collect()
    };
    let member = |(rank, domain): (Rank, Arc<dyn SharedDomain>)| {
        let endpoint = (per_node < ranks).then(|| {
            let names = (0..ranks).map(peer_name).collect();
            let mesh = InprocMesh::join(group, rank, names, Arc::clone(&domain), TEST_WAIT_POLICY)
                .unwrap();
            let endpoint: Arc<dyn Endpoint> = Arc::new(mesh);
            endpoint
        });
        let engine = match &endpoint {
            Some(_) => MatchingEngine::new(Arc::clone(&domain), endpoint.clone(), true).unwrap(),
            None => MatchingEngine::new_lazy(Arc::clone(&domain), true),
        };
        TestRank { engine, endpoint, domain }
    };
    domains.into_iter().enumerate().map(member).collect()
}

/// Creates domains over one segment, as processes do: each rank has a registry of its own.
fn join_segment(group: GroupId, ranks: WorldSize) -> Vec<Arc<dyn SharedDomain>> {
    let register = |rank| {
        let registry = Arc::new(NeighbourRegistry::new().unwrap());
        NeighbourMember::register_with(registry, group, rank, ranks).unwrap()
    };
    let registrations: Vec<_> = (0..ranks).map(register).collect();
    let peers: Arc<[PeerName]> = (0..ranks).map(peer_name).collect();
    let member = |registration: &Arc<NeighbourMember>| Who {
        socket: registration.socket_name(),
        nonce: host::random_nonce().unwrap(),
    };
    let members: Vec<_> = registrations.iter().map(member).collect();
    let join = |(me, registration): (Rank, Arc<NeighbourMember>)| {
        let (peers, members) = (Arc::clone(&peers), members.clone());
        std::thread::Builder::new().spawn(move || {
            let deadline = Deadline::after_ms(TEST_TIMEOUT_MS);
            let (peers, members, deadline) = (&peers, &members, &deadline);
            let vitals = HeartbeatConfig::default();
            let config = ShmJoinConfig { group, peers, members, me, deadline, vitals };
            let geometry =
                RegionGeometry { reuse_policy: ReusePolicy::AfterEviction, ..test_geometry(ranks) };
            let domain = shm::join(&registration, &config, geometry, TEST_WAIT_POLICY, &|| None);
            let domain = domain.unwrap();
            let domain: Arc<dyn SharedDomain> = Arc::new(domain);
            domain
        })
    };
    let threads: Vec<_> = registrations.into_iter().enumerate().map(join).collect();
    threads.into_iter().map(|thread| thread.unwrap().join().unwrap()).collect()
}

/// The recorded completion of a message.
#[derive(Debug, Default)]
pub(super) struct TestCompletion {
    value: Mutex<Option<Result<Delivery>>>,
    allocated: Mutex<Option<Vec<u8>>>,
    is_awaited: bool,
    doorbell: Doorbell,
}

impl Completion for TestCompletion {
    fn complete(&self, outcome: Result<Delivery>) {
        let before = self.value.lock().unwrap().replace(outcome);
        assert!(before.is_none(), "completed twice: {before:?}");
        self.doorbell.notify();
    }

    fn is_awaited(&self) -> bool {
        self.is_awaited
    }

    fn complete_allocated(&self, delivery: Delivery, bytes: Vec<u8>) {
        *self.allocated.lock().unwrap() = Some(bytes);
        self.complete(Ok(delivery));
    }
}

impl TestCompletion {
    /// Returns the message, if the engine has allocated its buffer.
    pub(super) fn allocated_bytes(&self) -> Vec<u8> {
        self.allocated.lock().unwrap().clone().expect("a receive with memory of the engine")
    }

    pub(super) fn get(&self) -> Option<Result<Delivery>> {
        self.value.lock().unwrap().clone()
    }

    /// Waits without making progress. Other threads make the progress.
    pub(super) fn wait(&self) -> Result<Delivery> {
        let deadline = Deadline::after_ms(TEST_TIMEOUT_MS);
        wait_until(&self.doorbell, WaitPolicy::SLEEP_SOON, &deadline, || None, || self.get())
            .unwrap()
    }

    /// Returns the kind of the error and its text.
    pub(super) fn error(&self) -> (ErrorKind, String) {
        let error = self.wait().unwrap_err();
        (error.kind(), error.message().to_owned())
    }
}

/// Returns memory that is never freed.
pub(super) fn leak_buffer(len: usize) -> Dst<'static> {
    Dst::from(Box::leak(vec![0; len].into_boxed_slice()))
}

/// Copies the bytes of a buffer.
pub(super) fn read_bytes(of: Dst<'_>) -> Vec<u8> {
    let mut bytes = vec![0; of.len()];
    Dst::from(bytes.as_mut_slice()).copy_from(of.as_src());
    bytes
}

/// Returns the buffer that a receive borrows.
pub(super) fn borrowed_buffer(message: &ReceiveRequest) -> Dst<'static> {
    match message.buffer {
        ReceiveBuffer::Borrowed(bytes) => bytes,
        ReceiveBuffer::Allocated { .. } => Dst::empty(),
    }
}

/// Returns the bytes of a message. They differ for each seed.
pub(super) fn test_payload(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..len).map(next).collect()
}

pub(super) fn leak_bytes(bytes: Vec<u8>) -> Src<'static> {
    Src::from(&*Box::leak(bytes.into_boxed_slice()))
}

pub(super) fn send_request(to: Rank, tag: u32, bytes: Vec<u8>) -> SendRequest {
    let deadline = Deadline::after_ms(TEST_TIMEOUT_MS);
    SendRequest {
        to,
        tag,
        dtype: DataType::U8,
        bytes: leak_bytes(bytes),
        deadline,
        is_synchronous: false,
    }
}

pub(super) fn receive_request(from: Option<Rank>, tag: Option<u32>, len: usize) -> ReceiveRequest {
    let deadline = Deadline::after_ms(TEST_TIMEOUT_MS);
    ReceiveRequest { from, tag, dtype: DataType::U8, buffer: leak_buffer(len).into(), deadline }
}

/// Returns a receive for messages of up to `most` bytes.
pub(super) fn allocating_receive(
    from: Option<Rank>,
    tag: Option<u32>,
    most: usize,
) -> ReceiveRequest {
    ReceiveRequest {
        buffer: ReceiveBuffer::Allocated { max_bytes: most },
        ..receive_request(from, tag, 0)
    }
}

impl TestRank {
    pub(super) fn post_send(&self, message: SendRequest) -> Arc<TestCompletion> {
        let outcome = Arc::new(TestCompletion::default());
        self.engine.send(message, outcome.clone()).unwrap();
        outcome
    }

    pub(super) fn post_receive(&self, message: ReceiveRequest) -> Arc<TestCompletion> {
        let outcome = Arc::new(TestCompletion::default());
        self.engine.receive(message, outcome.clone()).unwrap();
        outcome
    }

    /// Posts a send whose caller waits.
    pub(super) fn post_awaited_send(&self, message: SendRequest) -> Arc<TestCompletion> {
        let outcome = Arc::new(TestCompletion { is_awaited: true, ..TestCompletion::default() });
        self.engine.send(message, outcome.clone()).unwrap();
        outcome
    }

    /// Posts a receive whose caller waits.
    pub(super) fn post_awaited_receive(&self, message: ReceiveRequest) -> Arc<TestCompletion> {
        let outcome = Arc::new(TestCompletion { is_awaited: true, ..TestCompletion::default() });
        self.engine.receive(message, outcome.clone()).unwrap();
        outcome
    }

    /// Waits for a message and makes progress during the wait.
    pub(super) fn wait_with_progress(&self, outcome: &TestCompletion) -> Result<Delivery> {
        let over = || outcome.get().is_some();
        self.engine.progress_until(&over, &Deadline::after_ms(TEST_TIMEOUT_MS));
        outcome.get().unwrap()
    }

    pub(super) fn send(&self, to: Rank, tag: u32, bytes: Vec<u8>) -> Result<Delivery> {
        self.wait_with_progress(&self.post_send(send_request(to, tag, bytes)))
    }

    pub(super) fn receive(&self, from: Rank, tag: u32, len: usize) -> Result<Vec<u8>> {
        let message = receive_request(Some(from), Some(tag), len);
        let delivery = self.wait_with_progress(&self.post_receive(message))?;
        Ok(read_bytes(borrowed_buffer(&message).slice(0, delivery.bytes)))
    }
}

/// Runs an action on the state of a member's engine.
pub(super) fn with_state<T>(member: &TestRank, action: impl FnOnce(&mut MatchingState) -> T) -> T {
    member.engine.core().unwrap().with_state(action)
}

/// Makes progress on the members until a condition holds; no other thread makes progress.
pub(super) fn progress_until(members: &[&TestRank], holds: impl Fn() -> bool) {
    let limit = Deadline::after_ms(TEST_TIMEOUT_MS);
    while !holds() {
        assert!(!limit.has_passed());
        members.iter().for_each(|member| with_state(member, MatchingState::progress));
    }
}

/// Stops the service thread for a rank. The rank then makes progress only when the test calls it,
/// like a rank whose caller rarely waits.
pub(super) fn stop_service(member: &TestRank) {
    let core = member.engine.core().unwrap();
    core.dismiss_service(&mut core.lock().delegation);
}

/// Runs an action for every rank on a thread of its own.
pub(super) fn run_each_rank(members: Vec<TestRank>, action: impl Fn(Rank, &TestRank) + Sync) {
    let act = &action;
    std::thread::scope(|scope| {
        let run = |(rank, member): (Rank, TestRank)| {
            let thread = std::thread::Builder::new();
            // No rank leaves before all ranks are done.
            thread.spawn_scoped(scope, move || {
                act(rank, &member);
                member
            })
        };
        let threads: Vec<_> = members.into_iter().enumerate().map(run).collect();
        let all: Vec<_> = threads.into_iter().map(|thread| thread.unwrap().join()).collect();
        assert!(all.iter().all(|one| one.is_ok()), "a rank failed");
    });
}
