//! The native back end. It selects an algorithm for each operation and runs it. The ranks of a node
//! communicate through shared memory, and the ranks of different nodes through TCP streams.

pub mod bootstrap;
mod cores;
mod creation_failures;
#[cfg(test)]
#[cfg(not(loom))]
mod fast_path_tests;
#[cfg(test)]
#[cfg(not(loom))]
mod malformed_peer_tests;
mod memory_sharing;
pub mod open_domains;
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
    Backend, BackendProperties, CallArguments, FastCallKey, FastPath, FastPathKind, FastPathState,
    GroupFailureState, PeerMonitor, RankLocation,
};
use crate::algo::group_state::{ChosenAlgorithm, GroupState};
use crate::algo::hierarchical::{self, HierarchicalOperation};
use crate::algo::message::{MessageOperation, Team};
use crate::algo::rules::{AlgorithmRule, AlgorithmRules};
use crate::algo::shared::in_arenas::run_in_arenas_or;
use crate::algo::shared::{ShmSequencer, one_step};
use crate::algo::{Algorithm, AlgorithmBody, AlgorithmRequest, GroupShape, Operation, select};
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use crate::base::nodes::NodeMap;
use crate::transport::matching::MatchingEngine;
use crate::transport::survivor_rendezvous::SurvivorEndpoint;
use crate::transport::{
    Descriptor, DoorbellListener, Endpoint, HeartbeatTiming, OpKind, PointToPoint, SharedDomain,
    cma_bounce,
};
use open_domains::DomainMembership;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The native back end of a group of at least two ranks.
#[derive(Debug)]
pub struct NativeBackend {
    /// The engine for point-to-point messages. It must be the first field, because it uses the mesh
    /// and the domain and must be dropped before them.
    matching_engine: MatchingEngine,
    /// The streams between the ranks of all nodes; `None` if there is one node.
    mesh: Option<Arc<dyn Endpoint>>,
    /// The shared-memory domain of the ranks of this node. It must be dropped after the mesh.
    domain: DomainMembership,
    transport: String,
    /// The time in ms after which a silent rank counts as dead; 0 means no limit.
    heartbeat_ms: u64,
    shape: GroupShape,
    /// The algorithm rules of rank 0 that apply to the shape of this group.
    rules: AlgorithmRules,
    /// All algorithm rules of rank 0. Child groups inherit them.
    algorithm_overrides: Vec<AlgorithmRule>,
    nodes: NodeMap,
    rank_locations: Vec<RankLocation>,
    /// True if an arrival check precedes each collective.
    has_arrival_check: bool,
    /// The endpoint at which surviving ranks reach this rank. A group that the survivors create
    /// also holds a reference to it.
    survivor_endpoint: Arc<SurvivorEndpoint>,
    /// The number of operations that accessed arenas in place.
    zero_copy_calls: Arc<AtomicU64>,
    /// The state that is kept between operations. The running operation holds the lock.
    state: FastPathState,
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

impl FastPath for NativeBackend {
    fn fast_path_state(&self) -> Option<&FastPathState> {
        Some(&self.state)
    }

    #[cold]
    fn prepare_fast_path(&self, arguments: &CallArguments<'_>, key: FastCallKey) -> Option<bool> {
        let (kind, request) = (arguments.kind, AlgorithmRequest::default());
        // Another thread may already wait in the next operation, with the lock.
        let mut state = self.state.try_lock()?;
        let chosen = state.choose(kind, arguments.bytes(), request, &self.shape, &self.rules);
        Some(chosen.is_ok_and(|chosen| {
            state.prepare_plan(arguments, key, chosen.algorithm, &*self.domain)
        }))
    }
}

impl PeerMonitor for NativeBackend {
    fn survivor_endpoint(&self) -> &Arc<SurvivorEndpoint> {
        &self.survivor_endpoint
    }

    fn has_left(&self, rank: Rank) -> bool {
        let node = self.nodes.node_of(self.domain.peer(self.domain.rank()).rank);
        self.nodes.node_of(rank) == node && self.domain.has_left(self.nodes.local_rank(rank))
    }

    fn last_activity(&self, rank: Rank) -> Option<String> {
        let own = self.domain.peer(self.domain.rank()).rank;
        let is_on_node = |&rank: &Rank| self.nodes.node_of(rank) == self.nodes.node_of(own);
        let local_rank =
            Some(rank).filter(|&rank| rank < self.nodes.rank_count()).filter(is_on_node)?;
        Some(self.domain.region().describe_progress(self.nodes.local_rank(local_rank)))
    }

    fn heartbeat_limit(&self) -> Option<Duration> {
        HeartbeatTiming::from_limit_ms(self.heartbeat_ms).map(HeartbeatTiming::limit)
    }

    #[inline]
    fn enter_foreign_operation(&self, descriptor: &Descriptor) {
        self.domain.region().progress(self.domain.rank()).enter(&descriptor.encode());
    }

    #[inline]
    fn finish_foreign_operation(&self, descriptor: &Descriptor) {
        let [.., word] = descriptor.encode();
        self.domain.region().progress(self.domain.rank()).finish_foreign_operation(word);
    }

    fn first_rank_before(&self, sequence: u64) -> Option<Rank> {
        let key = Descriptor::order_key_of_sequence(sequence);
        let is_before = |&local: &Rank| !self.domain.region().progress(local).has_entered(key);
        let local = (0..self.domain.size()).find(is_before)?;
        Some(self.domain.peer(local).rank)
    }
}

impl Backend for NativeBackend {
    fn name(&self) -> &'static str {
        "native"
    }

    fn properties(&self) -> BackendProperties<'_> {
        BackendProperties {
            fast_path: match self.mesh.is_none() && !self.has_arrival_check {
                true => FastPathKind::Started,
                false => FastPathKind::None,
            },
            can_refuse_calls: false,
            has_arrival_check: self.has_arrival_check,
            algorithm_overrides: &self.algorithm_overrides,
            is_releasable_at_exit: true,
        }
    }

    fn rank_locations(&self) -> &[RankLocation] {
        &self.rank_locations
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
        let (kind, request) = (operation.descriptor.kind, operation.algorithm_request());
        let mut state = self.state.lock();
        let chosen = state.choose(kind, operation.bytes(), request, &self.shape, &self.rules)?;
        if self.domain.region().abort_record().is_set()
            && let Some(error) = self.domain.failure()
        {
            return Err(error);
        }
        match &self.mesh {
            None => self.run_within_node(chosen, operation, &mut state),
            // After any error, even if it was exhausted memory, the streams may contain a part of a
            // message. No rank can continue then, so the group fails.
            Some(mesh) => self
                .run_across_nodes(chosen, operation, &mut state, mesh.as_ref())
                .inspect_err(|error| mesh.fail(error)),
        }
    }

    fn point_to_point(&self) -> Option<&dyn PointToPoint> {
        Some(&self.matching_engine)
    }

    fn abort(&self, reason: &Error) {
        self.domain.fail(reason);
    }

    fn failure(&self) -> Option<Error> {
        self.domain.failure()
    }

    fn start_standalone(&self) {
        self.domain.leave_at_exit();
        // Ranks on several nodes learn of a death by the failure of the group.
        if self.mesh.is_none() {
            self.domain.tolerate_deaths();
        }
    }

    fn first_death(&self) -> Option<Error> {
        self.domain.first_death()
    }

    fn failure_state(&self) -> Option<Arc<dyn GroupFailureState>> {
        Some(Arc::new(NodeFailureState(Arc::clone(&self.domain.0))))
    }

    fn peer_monitor(&self) -> Option<&dyn PeerMonitor> {
        Some(self)
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
            "cma_bounce": cma_bounce::is_enabled(),
            "zero_copy_operations": self.zero_copy_calls.load(Ordering::Relaxed),
            "heartbeat_ms": self.heartbeat_ms,
            "algorithms": selection_report::describe(&self.shape, &self.rules),
        })
    }
}

impl NativeBackend {
    fn run_within_node(
        &self,
        chosen: ChosenAlgorithm,
        operation: &Operation<'_>,
        state: &mut GroupState,
    ) -> Result<()> {
        let ChosenAlgorithm { algorithm, running } = chosen;
        let mut steps = ShmSequencer::begin(&*self.domain, &mut state.cursor, operation, running);
        match algorithm.body {
            AlgorithmBody::OneStep(body) => one_step::run(&mut steps, operation, body)?,
            AlgorithmBody::Shared(run) => run_in_arenas_or(&mut steps, operation, run)?,
            AlgorithmBody::Message(_) | AlgorithmBody::Hierarchical(_) => {
                return Err(misplaced_algorithm(algorithm));
            }
        }
        steps.finish_within_node();
        Ok(())
    }

    fn run_across_nodes(
        &self,
        chosen: ChosenAlgorithm,
        operation: &Operation<'_>,
        state: &mut GroupState,
        mesh: &dyn Endpoint,
    ) -> Result<()> {
        let ChosenAlgorithm { algorithm, running } = chosen;
        let GroupState { cursor, peer_history: Some(messages), all_ranks, .. } = state else {
            return Err(misplaced_algorithm(algorithm));
        };
        let descriptor = Descriptor { algorithm: running.number, ..operation.descriptor };
        let operation = &Operation { descriptor, ..*operation };
        let mut steps = ShmSequencer::begin(&*self.domain, cursor, operation, running);
        steps.record_start();
        let is_hierarchical = matches!(algorithm.body, AlgorithmBody::Hierarchical(_));
        let mut messages = MessageOperation::begin(mesh, messages, operation, is_hierarchical);
        match algorithm.body {
            AlgorithmBody::OneStep(_) | AlgorithmBody::Shared(_) => {
                Err(misplaced_algorithm(algorithm))
            }
            AlgorithmBody::Message(run) => {
                steps.publish_finished(&[])?;
                run(&mut messages, Team::of(all_ranks, mesh.rank())?)?;
                steps.finish();
                Ok(())
            }
            AlgorithmBody::Hierarchical(run) => {
                let sequencer = steps.with_report_grace(hierarchical::HIERARCHICAL_REPORT_GRACE);
                let mut levels = HierarchicalOperation { sequencer, messages, nodes: &self.nodes };
                run(&mut levels, operation)?;
                levels.sequencer.finish();
                Ok(())
            }
        }
    }
}

/// Returns the error for a selected algorithm that cannot run in this group.
fn misplaced_algorithm(algorithm: &Algorithm) -> Error {
    Error::internal(format!(
        "the algorithm {} cannot run on the nodes of the group",
        algorithm.name
    ))
}

/// Returns the error for a peer info that cannot be decoded.
fn malformed_peer_info(rank: usize) -> Error {
    Error::malformed_peer_data(rank, "the peer info")
}
