//! The native back end: shared memory between the ranks of a node, TCP streams between nodes. It
//! selects an algorithm for each operation and runs it.

pub mod bootstrap;
mod cores;
#[cfg(test)]
#[cfg(not(loom))]
mod fast_path_tests;
#[cfg(test)]
#[cfg(not(loom))]
mod peer_departure_tests;
pub mod peer_info;
mod selection_report;
mod tuning;
#[cfg(test)]
#[cfg(not(loom))]
mod write_revocation_tests;

use super::{
    Backend, BackendMemory, CallArguments, FastCallKey, FastPathOutcome, GroupFailureState,
    RankLocation,
};
use crate::algo::hierarchical::{self, HierarchicalOperation};
use crate::algo::message::{self, MessageOperation, Team};
use crate::algo::rules::{AlgorithmRule, AlgorithmRules};
use crate::algo::shared::sequencer::fast_path::{self, FastPathPlan};
use crate::algo::shared::{self, ShmSequencer, one_step};
use crate::algo::{
    Algorithm, AlgorithmBody, AlgorithmRequest, EAGER_BYTES, GroupShape, Operation, select,
};
use crate::base::deadline::LazyDeadline;
use crate::base::error::{Error, Result};
use crate::base::ids::{GroupId, Rank};
use crate::base::nodes::NodeMap;
use crate::base::sync::lock;
use crate::transport::matching::MatchingEngine;
use crate::transport::survivor_rendezvous::SurvivorEndpoint;
use crate::transport::{
    Descriptor, DoorbellListener, Endpoint, OpKind, PointToPoint, SharedDomain, arena,
};
use serde_json::{Value, json};
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// The native back end of a group of at least two ranks.
#[derive(Debug)]
pub struct NativeBackend {
    /// The first field, because it must be dropped before the mesh and the domain that it uses.
    matching_engine: MatchingEngine,
    /// The connection between the ranks of all nodes, if there are several nodes.
    mesh: Option<Arc<dyn Endpoint>>,
    /// The shared region of the ranks of this node. It is dropped after the mesh.
    domain: DomainMembership,
    transport: String,
    /// The time in ms after which a silent rank counts as dead; 0 means no limit.
    heartbeat_ms: u64,
    shape: GroupShape,
    /// The rules of rank 0 that apply to the shape of this group.
    rules: AlgorithmRules,
    /// All rules of rank 0, for child groups.
    algorithm_overrides: Vec<AlgorithmRule>,
    nodes: NodeMap,
    rank_locations: Vec<RankLocation>,
    /// True if an arrival check precedes each collective.
    has_arrival_check: bool,
    /// The endpoint for survivors. A group that the survivors create holds it too.
    survivor_endpoint: Arc<SurvivorEndpoint>,
    /// The number of operations that copied directly between arenas.
    zero_copy_calls: Arc<AtomicU64>,
    /// The state of the operations. The running operation holds the lock.
    scratch: Mutex<NativeScratch>,
}

/// The membership of a rank in its domain. Dropping it leaves the domain, even if other owners
/// still hold the domain.
#[derive(Debug)]
struct DomainMembership(Arc<dyn SharedDomain>);

impl Deref for DomainMembership {
    type Target = dyn SharedDomain;

    fn deref(&self) -> &Self::Target {
        self.0.as_ref()
    }
}

impl Drop for DomainMembership {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// The failure state of a native group, which is the failure of its domain.
#[derive(Debug)]
struct NodeFailureState(Arc<dyn SharedDomain>);

impl GroupFailureState for NodeFailureState {
    fn failure(&self) -> Option<Error> {
        self.0.failure()
    }

    fn fail(&self, reason: &Error) {
        self.0.fail(reason);
    }

    fn add_listener(&self, listener: Weak<dyn DoorbellListener>) {
        self.0.add_listener(listener);
    }
}

/// The selected algorithm for calls of one kind and size.
#[derive(Clone, Copy, Debug)]
struct SelectedAlgorithm {
    kind: OpKind,
    bytes: usize,
    algorithm: &'static Algorithm,
    number: u8,
}

/// The state that a rank keeps between operations.
#[derive(Debug)]
struct NativeScratch {
    /// For each kind, the selection of the latest call that did not request an algorithm.
    last_selected: Vec<SelectedAlgorithm>,
    /// The plans of the prepared fast calls, by slot of their key; empty until the first one.
    fast_path_routines: Vec<Option<FastPathPlan>>,
    shm_cursor: shared::ShmCursor,
    /// The history of messages with each peer, if the group has several nodes.
    peer_history: Option<message::PeerHistory>,
    /// All ranks of the group, if it has several nodes.
    all_ranks: Vec<Rank>,
}

impl NativeScratch {
    fn new(group: GroupId, nodes: &NodeMap, rank: Rank) -> Self {
        // A group on one node needs neither the history nor the list of ranks.
        let spans_nodes = nodes.node_count() > 1;
        Self {
            last_selected: Vec::new(),
            fast_path_routines: Vec::new(),
            shm_cursor: shared::ShmCursor::new(group, nodes.members(nodes.node_of(rank)).len()),
            peer_history: spans_nodes
                .then(|| message::PeerHistory::new(group, rank, nodes.rank_count())),
            all_ranks: (0..nodes.rank_count()).filter(|_| spans_nodes).collect(),
        }
    }
}

impl Backend for NativeBackend {
    fn name(&self) -> &'static str {
        "native"
    }

    fn check_algorithm_request(
        &self,
        kind: OpKind,
        bytes: usize,
        wanted: AlgorithmRequest<'_>,
    ) -> Result<()> {
        select(kind, bytes, &self.shape, wanted, &self.rules).map(drop)
    }

    fn run(&self, operation: &Operation<'_>) -> Result<()> {
        let mut scratch = self.lock_scratch();
        let SelectedAlgorithm { algorithm: chosen, number, .. } =
            self.select_algorithm(operation, &mut scratch.last_selected)?;
        if self.domain.region().abort_record().is_set()
            && let Some(error) = self.domain.failure()
        {
            return Err(error);
        }
        match &self.mesh {
            None => self.run_within_node((chosen, number), operation, &mut scratch),
            // After any early error, including exhausted memory, the streams may contain a partial
            // message. So no rank can continue.
            Some(mesh) => self
                .run_across_nodes((chosen, number), operation, &mut scratch, mesh.as_ref())
                .inspect_err(|error| mesh.fail(error)),
        }
    }

    fn has_fast_path(&self) -> bool {
        self.mesh.is_none() && !self.has_arrival_check
    }

    fn prepare_fast_path(&self, plain: &CallArguments<'_>, key: FastCallKey) -> bool {
        let wanted = AlgorithmRequest::default();
        let Ok(choice) = select(plain.kind, plain.bytes(), &self.shape, wanted, &self.rules) else {
            return false;
        };
        let AlgorithmBody::OneStep(row) = choice.algorithm.body else { return false };
        let number = choice.algorithm.number(plain.kind);
        let routine = FastPathPlan::of((plain, key), (row, number), &*self.domain);
        let routines = &mut self.lock_scratch().fast_path_routines;
        routines.resize(FastCallKey::SLOTS, None);
        routines[key.slot()] = routine.ok();
        routines[key.slot()].is_some()
    }

    fn run_fast_path(
        &self,
        (plain, key): (&CallArguments<'_>, FastCallKey),
        (sequence, _): (u64, &LazyDeadline),
        begins: &mut dyn FnMut(&[u64; 3]),
    ) -> Result<FastPathOutcome> {
        let scratch = &mut *self.lock_scratch();
        let routine = scratch.fast_path_routines.get(key.slot()).and_then(Option::as_ref);
        match routine.filter(|routine| routine.key() == key) {
            // If the group has failed, the slow path reports the reason.
            Some(routine) if !self.domain.region().abort_record().is_set() => {
                routine.run(&*self.domain, &mut scratch.shm_cursor, (plain, sequence), begins)
            }
            _ => Ok(FastPathOutcome::NotStarted),
        }
    }

    fn wake_pending_waiters(&self) {
        fast_path::wake_sleeping_peers(&*self.domain);
    }

    fn point_to_point(&self) -> Option<&dyn PointToPoint> {
        Some(&self.matching_engine)
    }

    fn allocate(&self, bytes: usize) -> Result<Box<dyn BackendMemory>> {
        Ok(Box::new(arena::allocate(bytes)?))
    }

    fn abort(&self, reason: &Error) {
        self.domain.fail(reason);
    }

    fn failure(&self) -> Option<Error> {
        self.domain.failure()
    }

    fn failure_state(&self) -> Option<Arc<dyn GroupFailureState>> {
        Some(Arc::new(NodeFailureState(Arc::clone(&self.domain.0))))
    }

    fn survivor_endpoint(&self) -> Option<&Arc<SurvivorEndpoint>> {
        Some(&self.survivor_endpoint)
    }

    fn has_left(&self, rank: Rank) -> bool {
        let node = self.nodes.node_of(self.domain.peer(self.domain.rank()).rank);
        self.nodes.node_of(rank) == node && self.domain.has_left(self.nodes.local_rank(rank))
    }

    fn rank_locations(&self) -> &[RankLocation] {
        &self.rank_locations
    }

    fn last_activity(&self, rank: Rank) -> Option<String> {
        let own = self.domain.peer(self.domain.rank()).rank;
        let is_on_node = |&rank: &Rank| self.nodes.node_of(rank) == self.nodes.node_of(own);
        let local_rank =
            Some(rank).filter(|&rank| rank < self.nodes.rank_count()).filter(is_on_node)?;
        Some(self.domain.region().describe_progress(self.nodes.local_rank(local_rank)))
    }

    fn has_arrival_check(&self) -> bool {
        self.has_arrival_check
    }

    fn algorithm_overrides(&self) -> &[AlgorithmRule] {
        &self.algorithm_overrides
    }

    fn describe(&self) -> Value {
        json!({
            "transport": self.transport,
            "nodes": (0..self.nodes.node_count()).map(|node| self.nodes.members(node)).collect::<Vec<_>>(),
            "network": self.mesh.as_ref().map(|mesh| mesh.describe()),
            "slot_bytes": self.domain.region().geometry().slot_bytes,
            "oversubscribed": self.shape.is_oversubscribed,
            "cma_read": self.shape.has_cma,
            "cma_preferred": self.shape.has_cheap_cma_read,
            "cma_write": self.shape.has_cma_write,
            "zero_copy_operations": self.zero_copy_calls.load(Ordering::Relaxed),
            "heartbeat_ms": self.heartbeat_ms,
            "algorithms": selection_report::describe(&self.shape, &self.rules),
        })
    }
}

impl NativeBackend {
    fn lock_scratch(&self) -> MutexGuard<'_, NativeScratch> {
        lock(&self.scratch)
    }

    /// Returns the algorithm for a call. Most calls have the size of the previous call of their
    /// kind.
    fn select_algorithm(
        &self,
        operation: &Operation<'_>,
        last: &mut Vec<SelectedAlgorithm>,
    ) -> Result<SelectedAlgorithm> {
        let (kind, bytes) = (operation.descriptor.kind, operation.bytes());
        let wanted = operation.algorithm_request();
        let is_default_request = wanted.name.is_none() && !wanted.canonical;
        let position = last.iter().position(|last| last.kind == kind);
        let same = position.map(|index| last[index]).filter(|last| last.bytes == bytes);
        if let Some(same) = same.filter(|_| is_default_request) {
            return Ok(same);
        }
        let algorithm = select(kind, bytes, &self.shape, wanted, &self.rules)?.algorithm;
        let chosen = SelectedAlgorithm { kind, bytes, algorithm, number: algorithm.number(kind) };
        match position {
            _ if !is_default_request => {}
            Some(index) => last[index] = chosen,
            None => last.push(chosen),
        }
        Ok(chosen)
    }

    fn run_within_node(
        &self,
        (chosen, number): (&Algorithm, u8),
        operation: &Operation<'_>,
        scratch: &mut NativeScratch,
    ) -> Result<()> {
        let mut steps = ShmSequencer::begin(
            &*self.domain,
            &mut scratch.shm_cursor,
            operation,
            (chosen.name, number),
        );
        match chosen.body {
            AlgorithmBody::OneStep(row) => one_step::run(&mut steps, operation, row)?,
            AlgorithmBody::Shared(run) => run(&mut steps, operation)?,
            AlgorithmBody::Message(_) | AlgorithmBody::Hierarchical(_) => {
                return Err(misplaced_algorithm(chosen));
            }
        }
        if operation.bytes() <= EAGER_BYTES && !steps.has_waited_long() {
            operation.observer.record_short_wait();
        }
        steps.finish();
        Ok(())
    }

    fn run_across_nodes(
        &self,
        (chosen, number): (&Algorithm, u8),
        operation: &Operation<'_>,
        scratch: &mut NativeScratch,
        mesh: &dyn Endpoint,
    ) -> Result<()> {
        let NativeScratch {
            shm_cursor: steps,
            peer_history: Some(messages),
            all_ranks: everyone,
            ..
        } = scratch
        else {
            return Err(misplaced_algorithm(chosen));
        };
        let descriptor = Descriptor { algorithm: number, ..operation.descriptor };
        let operation = &Operation { descriptor, ..*operation };
        let mut steps = ShmSequencer::begin(&*self.domain, steps, operation, (chosen.name, number));
        steps.record_start();
        let is_hierarchical = matches!(chosen.body, AlgorithmBody::Hierarchical(_));
        let mut call = MessageOperation::begin(mesh, messages, operation, is_hierarchical);
        match chosen.body {
            AlgorithmBody::OneStep(_) | AlgorithmBody::Shared(_) => {
                Err(misplaced_algorithm(chosen))
            }
            AlgorithmBody::Message(run) => {
                steps.publish_finished(&[])?;
                run(&mut call, Team::of(everyone, mesh.rank())?, operation)?;
                steps.finish();
                Ok(())
            }
            AlgorithmBody::Hierarchical(run) => {
                let steps = steps.with_report_grace(hierarchical::HIERARCHICAL_REPORT_GRACE);
                let mut levels =
                    HierarchicalOperation { sequencer: steps, messages: call, nodes: &self.nodes };
                run(&mut levels, operation)?;
                levels.sequencer.finish();
                Ok(())
            }
        }
    }
}

/// Returns the error for a selected algorithm that cannot run in this group.
fn misplaced_algorithm(chosen: &Algorithm) -> Error {
    Error::internal(format!("the algorithm {} cannot run on the nodes of the group", chosen.name))
}

/// Returns the error for a peer info that cannot be decoded.
fn malformed_peer_info(rank: usize) -> Error {
    Error::internal(format!("the peer info of rank {rank} cannot be decoded"))
}
