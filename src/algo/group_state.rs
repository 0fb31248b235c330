//! The state that a rank keeps between the operations of one group. Only the running operation
//! accesses this state.
//!
//! Most calls repeat an earlier call. So the state has the last choice of an algorithm for each
//! operation, and the plans of small calls.

use super::call_arguments::{CallArguments, FastCallKey};
use super::fingerprint::ArgumentsHash;
use super::message::PeerHistory;
use super::operation::{AlgorithmRequest, RunningAlgorithm};
use super::row::{Algorithm, AlgorithmBody, GroupShape};
use super::rules::AlgorithmRules;
use super::select::select;
use super::shared::ShmCursor;
use super::shared::one_step::{OneStepPlan, is_sent_unchanged};
use super::table::algorithm_name;
use crate::base::error::Result;
use crate::base::ids::{GroupId, Rank};
use crate::base::label::Label;
use crate::base::nodes::NodeMap;
use crate::transport::{OpKind, SharedDomain};

/// The state of one group on this rank.
#[derive(Debug)]
pub struct GroupState {
    /// The position of this rank in the steps that the ranks of this node take in shared memory.
    pub cursor: ShmCursor,
    /// The last choice of an algorithm for each operation that has had one.
    last_choices: Vec<LastChoice>,
    /// Whether the last choices were made after the kernel had refused cross-memory attach.
    are_choices_without_cma: bool,
    /// The plans of the fast path. The index of a plan is the slot of its key. The vector is empty
    /// until the first plan exists.
    plans: Vec<Option<FastPathPlan>>,
    /// The history of messages with each peer; `None` if the group has only one node.
    pub peer_history: Option<PeerHistory>,
    /// All ranks of the group; empty if the group has only one node.
    pub all_ranks: Vec<Rank>,
}

/// The algorithm that was selected for a call without a requested algorithm.
#[derive(Clone, Copy, Debug)]
struct LastChoice {
    kind: OpKind,
    bytes: usize,
    chosen: ChosenAlgorithm,
}

/// A selected algorithm.
#[derive(Clone, Copy, Debug)]
pub struct ChosenAlgorithm {
    /// The algorithm.
    pub algorithm: &'static Algorithm,
    /// Its name, and its number for the operation.
    pub running: RunningAlgorithm,
}

/// The properties that all fast calls with one key have in common on this rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct FastPathPlan {
    key: FastCallKey,
    pub(super) step: OneStepPlan,
    /// The first two words of the encoded descriptor of a call without a label. The third word has
    /// only the sequence number.
    pub(super) words: [u64; 2],
    pub(super) arguments_hash: ArgumentsHash,
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
            last_choices: Vec::new(),
            are_choices_without_cma: false,
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

    /// Selects the algorithm for a call of `bytes` bytes.
    ///
    /// # Errors
    /// As [`select`].
    pub fn choose(
        &mut self,
        kind: OpKind,
        bytes: usize,
        request: AlgorithmRequest<'_>,
        shape: &GroupShape,
        rules: &AlgorithmRules,
    ) -> Result<ChosenAlgorithm> {
        let has_request = request.has_requirements();
        let without_cma;
        let mut shape = shape;
        // A call that names an algorithm runs it: each call then finds out again that the kernel
        // refuses the access.
        if self.cursor.is_cma_refused && request.name.is_none() {
            if !std::mem::replace(&mut self.are_choices_without_cma, true) {
                self.last_choices.clear();
            }
            without_cma = shape.without_cma();
            shape = &without_cma;
        }
        let last_choice = self.last_choices.iter_mut().find(|last| last.kind == kind);
        if let Some(last) = &last_choice
            && last.bytes == bytes
            && !has_request
        {
            return Ok(last.chosen);
        }
        let algorithm = select(kind, bytes, shape, request, rules)?.algorithm;
        let chosen = ChosenAlgorithm { algorithm, running: algorithm.running(kind) };
        let choice = LastChoice { kind, bytes, chosen };
        match last_choice {
            _ if has_request => {}
            Some(last) => *last = choice,
            None => self.last_choices.push(choice),
        }
        Ok(chosen)
    }

    /// Prepares the plan for calls with this key. `arguments` are the arguments of one such call,
    /// and `algorithm` is the algorithm that the call runs. Returns false if such calls cannot take
    /// the fast path.
    #[cold]
    pub fn prepare_plan(
        &mut self,
        arguments: &CallArguments<'_>,
        key: FastCallKey,
        algorithm: &'static Algorithm,
        domain: &dyn SharedDomain,
    ) -> bool {
        let AlgorithmBody::OneStep(body) = algorithm.body else { return false };
        let step = OneStepPlan::of(body, arguments, domain.rank(), domain.size());
        let Some(step) = step.ok().filter(|_| is_sent_unchanged(arguments)) else { return false };
        let arguments = CallArguments { label: &Label::NONE, ..*arguments };
        let words = arguments.descriptor(0).encode_with(algorithm.number(arguments.kind));
        let is_oversubscribed = domain.wait_policy().is_oversubscribed;
        self.plans.resize(FastCallKey::SLOTS, None);
        let arguments_hash = ArgumentsHash::of(&words);
        let words = [words[0], words[1]];
        self.plans[key.slot()] =
            Some(FastPathPlan { key, step, words, arguments_hash, is_oversubscribed });
        true
    }
}
