//! The row of an algorithm in the table of algorithms ([`super::table`]), and the properties of a
//! group ([`GroupShape`]) on which the predicates of a row depend.
//!
//! The file of each algorithm contains the row of the algorithm. This module does not depend on the
//! table or on the selection.

use super::fold::MAX_STACK_RANKS;
use super::hierarchical::HierarchicalOperation;
use super::message::{MessageOperation, Team};
use super::operation::{EAGER_BYTES, Operation};
use super::shared::ShmSequencer;
use super::shared::arena_state::is_arena_size;
use super::shared::one_step::OneStepAlgorithm;
use crate::base::error::Result;
use crate::base::ids::WorldSize;
use crate::base::nodes::NodeMap;
use crate::transport::OpKind;
use crate::transport::ctrl_slot::INLINE_BYTES;

/// The properties of a group on which the selection of an algorithm depends. All ranks agree on
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupShape {
    /// The number of ranks.
    pub ranks: WorldSize,
    /// The number of nodes.
    pub nodes: usize,
    /// The number of ranks on the smallest node.
    pub min_ranks_per_node: usize,
    /// The number of ranks on the largest node.
    pub max_ranks_per_node: usize,
    /// Whether the hosts have fewer cores than ranks. In that case each wait costs a context
    /// switch.
    pub is_oversubscribed: bool,
    /// Whether each rank can read the memory of the other ranks of its node by cross-memory attach
    /// (CMA), that is, by the system call `process_vm_readv`.
    pub has_cma: bool,
    /// Whether a CMA read costs each rank less than a copy through shared memory.
    pub has_cheap_cma_read: bool,
    /// Whether each rank can also write the memory of the other ranks of its node by CMA, at the
    /// same cost as a read.
    pub has_cma_write: bool,
}

impl GroupShape {
    /// Returns the shape of a group with these nodes. The ranks of the group cannot use CMA.
    pub fn of(nodes: &NodeMap, is_oversubscribed: bool) -> Self {
        let (ranks, count) = (nodes.rank_count(), nodes.node_count());
        let (min_ranks_per_node, max_ranks_per_node) =
            (nodes.min_ranks_per_node(), nodes.max_ranks_per_node());
        let (has_cma, has_cheap_cma_read, has_cma_write) = (false, false, false);
        Self {
            ranks,
            nodes: count,
            min_ranks_per_node,
            max_ranks_per_node,
            is_oversubscribed,
            has_cma,
            has_cheap_cma_read,
            has_cma_write,
        }
    }

    /// Returns the same shape without CMA.
    pub(super) fn without_cma(&self) -> Self {
        Self { has_cma: false, has_cheap_cma_read: false, has_cma_write: false, ..*self }
    }
}

/// An algorithm on memory that all ranks share.
pub type SharedAlgorithmFn = fn(&mut ShmSequencer<'_>, &Operation<'_>) -> Result<()>;
/// An algorithm over messages alone. The team contains all ranks of the group.
pub type MessageAlgorithmFn = fn(&mut MessageOperation<'_>, Team<'_>) -> Result<()>;
/// An algorithm on shared memory within nodes and messages between them.
pub type HierarchicalAlgorithmFn = fn(&mut HierarchicalOperation<'_>, &Operation<'_>) -> Result<()>;

/// The function of an algorithm. The variants differ in the transports that the algorithm uses.
#[derive(Clone, Copy, Debug)]
pub enum AlgorithmBody {
    /// An algorithm of one step on memory that all ranks share.
    OneStep(&'static OneStepAlgorithm),
    /// An algorithm of several steps on memory that all ranks share.
    Shared(SharedAlgorithmFn),
    /// An algorithm over messages alone.
    Message(MessageAlgorithmFn),
    /// An algorithm on shared memory within nodes and messages between them.
    Hierarchical(HierarchicalAlgorithmFn),
}

/// A predicate on a call. `bytes` is the count argument in bytes ([`Operation::bytes`]), and
/// `shape` is the shape of the group.
pub type CallPredicate = fn(bytes: usize, shape: &GroupShape) -> bool;

/// Holds for every call.
pub const ALWAYS: CallPredicate = |_, _| true;
/// Holds if the ranks can read each other's memory. A single rank has no memory to read.
pub const HAS_CMA: CallPredicate = |_, shape| shape.has_cma || shape.ranks == 1;
/// Holds if the ranks can also write each other's memory.
pub const HAS_CMA_WRITE: CallPredicate =
    |bytes, shape| HAS_CMA(bytes, shape) && (shape.has_cma_write || shape.ranks == 1);
/// Holds if [`HAS_CMA`] holds and the per-rank data of all ranks fits on the stack.
pub const HAS_CMA_AND_FEW_RANKS: CallPredicate =
    |bytes, shape| HAS_CMA(bytes, shape) && shape.ranks <= MAX_STACK_RANKS;
/// Holds if [`HAS_CMA_WRITE`] holds and the per-rank data of all ranks fits on the stack.
pub const HAS_CMA_WRITE_AND_FEW_RANKS: CallPredicate =
    |bytes, shape| HAS_CMA_WRITE(bytes, shape) && shape.ranks <= MAX_STACK_RANKS;
/// Holds if the payload fits inline in a control slot (128 bytes of shared memory that a rank
/// publishes in one step).
pub const FITS_INLINE: CallPredicate = |bytes, _| bytes <= INLINE_BYTES;
/// Holds if the blocks for all ranks together fit in a control slot.
pub const ALL_FIT_INLINE: CallPredicate =
    |bytes, shape| bytes.saturating_mul(shape.ranks) <= INLINE_BYTES;
/// Holds if the payload fits in the smallest data slot and is too short for in-place access to
/// arenas ([`is_arena_size`]).
pub const FITS_EAGER: CallPredicate =
    |bytes, shape| bytes <= EAGER_BYTES && !is_arena_size(bytes, shape.is_oversubscribed);
/// Holds if the blocks for all ranks together fit in the smallest data slot, and one block is too
/// short for in-place access to arenas.
pub const ALL_FIT_EAGER: CallPredicate = |bytes, shape| {
    bytes.saturating_mul(shape.ranks) <= EAGER_BYTES
        && !is_arena_size(bytes, shape.is_oversubscribed)
};
/// One row of the table.
#[derive(Debug)]
pub struct Algorithm {
    /// The operations that the algorithm performs.
    pub kinds: &'static [OpKind],
    /// The name of the algorithm, unique within each operation.
    pub name: &'static str,
    /// A description in one line.
    pub description: &'static str,
    /// Whether the algorithm supports a call. [`Algorithm::can_run`] additionally checks the nodes
    /// of the group.
    pub fits: CallPredicate,
    /// Whether the algorithm is fast enough for a call that it supports: the selection takes the
    /// first row that supports the call and pays.
    pub pays: CallPredicate,
    /// Whether the algorithm folds the vectors of all ranks at once and in rank order, or folds
    /// nothing. A `canonical` call and an average of integers require this.
    pub ordered: bool,
    /// The function of the algorithm.
    pub body: AlgorithmBody,
}

impl Algorithm {
    /// Returns the default row: it has no names, supports every call, always pays, and is
    /// `ordered`. The file of the algorithm overrides the fields that differ.
    const fn with_body(body: AlgorithmBody) -> Self {
        let (kinds, name, description) = (&[], "", "");
        Self { kinds, name, description, fits: ALWAYS, pays: ALWAYS, ordered: true, body }
    }

    /// Returns the defaults of the row of a one-step algorithm.
    pub const fn one_step(body: &'static OneStepAlgorithm) -> Self {
        Self::with_body(AlgorithmBody::OneStep(body))
    }

    /// Returns the defaults of the row of an algorithm on shared memory.
    pub const fn shared(run: SharedAlgorithmFn) -> Self {
        Self::with_body(AlgorithmBody::Shared(run))
    }

    /// Returns the defaults of the row of an algorithm over messages.
    pub const fn message(run: MessageAlgorithmFn) -> Self {
        Self::with_body(AlgorithmBody::Message(run))
    }

    /// Returns the defaults of the row of a hierarchical algorithm.
    pub const fn hierarchical(run: HierarchicalAlgorithmFn) -> Self {
        Self::with_body(AlgorithmBody::Hierarchical(run))
    }

    /// Returns whether the algorithm can perform a call with a count argument of `bytes` bytes.
    pub fn can_run(&self, bytes: usize, shape: &GroupShape) -> bool {
        let ranks = match self.body {
            AlgorithmBody::OneStep(_) | AlgorithmBody::Shared(_) => shape.nodes == 1,
            AlgorithmBody::Message(_) => shape.nodes > 1,
            AlgorithmBody::Hierarchical(_) => shape.nodes > 1 && shape.max_ranks_per_node > 1,
        };
        ranks && (self.fits)(bytes, shape)
    }
}
