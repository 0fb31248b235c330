//! The state that a rank keeps between the operations of one group.
//!
//! The running operation has exclusive access. The prepared plans are the only cache of a choice of
//! an algorithm: a small call repeats the choice of the last call with the same key.

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
    /// The position in the steps of the ranks of this node.
    pub cursor: ShmCursor,
    /// The plans of the fast path, by slot of their key; empty until the first one.
    plans: Vec<Option<FastPathPlan>>,
    /// The history of messages with each peer, if the group has several nodes.
    pub peer_history: Option<PeerHistory>,
    /// All ranks of the group, if it has several nodes.
    pub all_ranks: Vec<Rank>,
}

/// The properties that all fast calls with one key have in common on this rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct FastPathPlan {
    key: FastCallKey,
    pub(super) step: OneStepPlan,
    /// The words of the descriptor, with any sequence number and without a label.
    pub(super) words: [u64; 3],
    /// On an oversubscribed host the waiting ranks sleep, so this rank wakes them first.
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

    /// Returns the plan for a key, if there is one, and the cursor.
    #[inline]
    pub(super) fn plan_and_cursor(
        &mut self,
        key: FastCallKey,
    ) -> Option<(&FastPathPlan, &mut ShmCursor)> {
        let plan = self.plans.get(key.slot()).and_then(Option::as_ref);
        plan.filter(|plan| plan.key == key).map(|plan| (plan, &mut self.cursor))
    }

    /// Returns whether there is a plan for a key.
    #[inline]
    pub fn has_plan(&self, key: FastCallKey) -> bool {
        let plan = self.plans.get(key.slot()).and_then(Option::as_ref);
        plan.is_some_and(|plan| plan.key == key)
    }

    /// Prepares the plan for calls with the key of `arguments`, which run this algorithm. Does
    /// nothing if they cannot take the fast path.
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
