//! The state that a rank keeps between the operations of one group. Only the running operation
//! accesses this state.
//!
//! The fast-path plans are the only place that caches the choice of an algorithm: a small call uses
//! the algorithm that the last call with the same key selected.

use super::call_arguments::{CallArguments, FastCallKey};
use super::message::PeerHistory;
use super::row::{Algorithm, AlgorithmBody};
use super::shared::ShmCursor;
use super::shared::one_step::{OneStepPlan, is_sent_unchanged};
use super::table::algorithm_name;
use crate::base::ids::{GroupId, Rank};
use crate::base::label::Label;
use crate::base::nodes::NodeMap;
use crate::transport::SharedDomain;

/// The state of one group on this rank.
#[derive(Debug)]
pub struct GroupState {
    /// The position of this rank in the steps that the ranks of this node take in shared memory.
    pub cursor: ShmCursor,
    /// The plans of the fast path. The index of a plan is the slot of its key. The vector is empty
    /// until the first plan exists.
    plans: Vec<Option<FastPathPlan>>,
    /// The history of messages with each peer; `None` if the group has only one node.
    pub peer_history: Option<PeerHistory>,
    /// All ranks of the group; empty if the group has only one node.
    pub all_ranks: Vec<Rank>,
}

/// The properties that all fast calls with one key have in common on this rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct FastPathPlan {
    key: FastCallKey,
    pub(super) step: OneStepPlan,
    /// The encoded descriptor, with any sequence number and without a label.
    pub(super) words: [u64; 3],
    /// Whether the host has fewer cores than ranks. In that case waiting ranks sleep, so this rank
    /// wakes them before it waits itself.
    pub(super) is_oversubscribed: bool,
}

impl GroupState {
    /// Returns the state of a rank in a new group.
    pub fn new(group: GroupId, nodes: &NodeMap, rank: Rank) -> Self {
        // A group on one node needs neither the history nor the list of ranks.
        let spans_nodes = nodes.node_count() > 1;
        let (node_size, size) = (nodes.members(nodes.node_of(rank)).len(), nodes.rank_count());
        Self {
            cursor: ShmCursor::new(group, node_size, algorithm_name),
            plans: Vec::new(),
            peer_history: spans_nodes.then(|| PeerHistory::new(group, rank, size, algorithm_name)),
            all_ranks: (0..size).filter(|_| spans_nodes).collect(),
        }
    }

    /// Returns the plan for a key and the cursor, or `None` if no plan exists for the key.
    #[inline]
    pub(super) fn plan_and_cursor(
        &mut self,
        key: FastCallKey,
    ) -> Option<(&FastPathPlan, &mut ShmCursor)> {
        let plan = self.plans.get(key.slot()).and_then(Option::as_ref);
        plan.filter(|plan| plan.key == key).map(|plan| (plan, &mut self.cursor))
    }

    /// Returns whether a plan exists for a key.
    #[inline]
    pub fn has_plan(&self, key: FastCallKey) -> bool {
        let plan = self.plans.get(key.slot()).and_then(Option::as_ref);
        plan.is_some_and(|plan| plan.key == key)
    }

    /// Prepares the plan for calls with this key. `arguments` are the arguments of one such call,
    /// and `algorithm` is the algorithm that the call runs. Does nothing if such calls cannot take
    /// the fast path.
    #[cold]
    pub fn prepare_plan(
        &mut self,
        arguments: &CallArguments<'_>,
        key: FastCallKey,
        algorithm: &'static Algorithm,
        domain: &dyn SharedDomain,
    ) {
        let AlgorithmBody::OneStep(body) = algorithm.body else { return };
        let step = OneStepPlan::of(body, arguments, domain.rank(), domain.size());
        let Some(step) = step.ok().filter(|_| is_sent_unchanged(arguments)) else { return };
        let arguments = CallArguments { label: &Label::NONE, ..*arguments };
        let words = arguments.descriptor(0).encode_with(algorithm.number(arguments.kind));
        let is_oversubscribed = domain.wait_policy().is_oversubscribed;
        self.plans.resize(FastCallKey::SLOTS, None);
        self.plans[key.slot()] = Some(FastPathPlan { key, step, words, is_oversubscribed });
    }
}
