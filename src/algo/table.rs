//! The table of algorithms. The row of an algorithm is in the algorithm's file; this file contains
//! the order of preference.
//!
//! Within an operation, the first row that supports the call and pays is selected. Within one node,
//! that is a shared-memory algorithm. Between nodes with several ranks, it is a hierarchical
//! algorithm, which reduces in the node, exchanges between nodes and distributes in the node.
//! Otherwise it is an algorithm over messages alone. A row that never pays may still be requested
//! by name, or be the only one that folds in rank order.

use super::fold::MAX_STACK_RANKS;
use super::hierarchical::{self, HierarchicalOperation};
use super::message::{self, MessageOperation, Team};
use super::operation::Operation;
use super::select::GroupShape;
use super::shared::arena_access::is_arena_size;
use super::shared::one_step::OneStepAlgorithm;
use super::shared::{self, ShmSequencer};
use crate::base::error::Result;
use crate::transport::OpKind;
use crate::transport::ctrl_slot::INLINE_BYTES;
use std::sync::LazyLock;

static ALGORITHMS: &[&Algorithm] = &[
    &shared::all_reduce::inline::ROW,
    &shared::all_reduce::eager::ROW,
    &shared::all_reduce::one_shot::ROW,
    &shared::all_reduce::cma_write::ROW,
    &shared::all_reduce::cma_read::ROW,
    &shared::all_reduce::two_shot::ROW,
    &hierarchical::all_reduce::two_level::ROW,
    &hierarchical::all_reduce::split_rail::ROW,
    &message::all_reduce::linear::ROW,
    &message::all_reduce::recursive_doubling::ROW,
    &message::all_reduce::rabenseifner::ROW,
    &message::all_reduce::ring::ROW,
    &message::all_reduce::ordered::ROW,
    &shared::reduce::inline::ROW,
    &shared::reduce::eager::ROW,
    &shared::reduce::staged::ROW,
    &hierarchical::reduce::two_level::ROW,
    &message::reduce::reduce_scatter_gather::ROW,
    &message::reduce::binomial::ROW,
    &message::reduce::ordered::ROW,
    &shared::broadcast::inline::ROW,
    &shared::broadcast::eager::ROW,
    &shared::broadcast::cma_write::ROW,
    &shared::broadcast::staged::ROW,
    &hierarchical::broadcast::two_level::ROW,
    &message::broadcast::binomial::ROW,
    &message::broadcast::chain::ROW,
    &shared::all_gather::inline::ROW,
    &shared::all_gather::eager::ROW,
    &shared::all_gather::cma_write::ROW,
    &shared::all_gather::cma_read::ROW,
    &shared::all_gather::staged::ROW,
    &hierarchical::all_gather::split_rail::ROW,
    &message::all_gather::bruck::ROW,
    &message::all_gather::ring::ROW,
    &shared::reduce_scatter::inline::ROW,
    &shared::reduce_scatter::eager::ROW,
    &shared::reduce_scatter::cma_read::ROW,
    &shared::reduce_scatter::staged::ROW,
    &hierarchical::reduce_scatter::split_rail::ROW,
    &message::reduce_scatter::pairwise::ROW,
    &message::reduce_scatter::ring::ROW,
    &message::reduce_scatter::ordered::ROW,
    &shared::gather::staged::ROW,
    &hierarchical::gather::two_level::ROW,
    &message::gather::binomial::ROW,
    &message::gather::linear::ROW,
    &shared::scatter::staged::ROW,
    &hierarchical::scatter::two_level::ROW,
    &message::scatter::binomial::ROW,
    &message::scatter::linear::ROW,
    &shared::all_to_all::inline::ROW,
    &shared::all_to_all::eager::ROW,
    &shared::all_to_all::cma_write::ROW,
    &shared::all_to_all::cma_read::ROW,
    &shared::all_to_all::staged::ROW,
    &message::all_to_all::bruck::ROW,
    &message::all_to_all::pairwise::ROW,
    &shared::scan::inline::ROW,
    &shared::scan::eager::ROW,
    &shared::scan::staged::ROW,
    &message::scan::chain::ROW,
    &message::scan::ordered::ROW,
    &shared::barrier::flags::ROW,
    &hierarchical::barrier::two_level::ROW,
    &message::barrier::dissemination::ROW,
];

/// The function of an algorithm, by the transports on which it runs.
#[derive(Clone, Copy, Debug)]
pub enum AlgorithmBody {
    /// An algorithm of one step in memory that all ranks share.
    OneStep(&'static OneStepAlgorithm),
    /// An algorithm on memory that all ranks share.
    Shared(fn(&mut ShmSequencer<'_>, &Operation<'_>) -> Result<()>),
    /// An algorithm over messages alone; the team is all ranks.
    Message(fn(&mut MessageOperation<'_>, Team<'_>, &Operation<'_>) -> Result<()>),
    /// An algorithm on shared memory within nodes and messages between them.
    Hierarchical(fn(&mut HierarchicalOperation<'_>, &Operation<'_>) -> Result<()>),
}

/// A predicate of a call with a count argument of `bytes` bytes ([`Operation::bytes`]), in a group
/// of this shape.
pub type CallPredicate = fn(bytes: usize, shape: &GroupShape) -> bool;

/// Holds for every call.
pub const ALWAYS: CallPredicate = |_, _| true;
/// Holds if the ranks can read each other's memory. A single rank has no memory to read.
pub const HAS_CMA: CallPredicate = |_, shape| shape.has_cma || shape.ranks == 1;
/// Holds if the ranks can also write each other's memory.
pub const HAS_CMA_WRITE: CallPredicate =
    |bytes, shape| HAS_CMA(bytes, shape) && (shape.has_cma_write || shape.ranks == 1);
/// Holds for [`HAS_CMA`] with few enough ranks to keep per-rank data on the stack.
pub const HAS_CMA_AND_FEW_RANKS: CallPredicate =
    |bytes, shape| HAS_CMA(bytes, shape) && shape.ranks <= MAX_STACK_RANKS;
/// Holds for [`HAS_CMA_WRITE`] with few enough ranks to keep per-rank data on the stack.
pub const HAS_CMA_WRITE_AND_FEW_RANKS: CallPredicate =
    |bytes, shape| HAS_CMA_WRITE(bytes, shape) && shape.ranks <= MAX_STACK_RANKS;
/// Holds if the payload fits in a control slot.
pub const FITS_INLINE: CallPredicate = |bytes, _| bytes <= INLINE_BYTES;
/// Holds if the blocks for all ranks together fit in a control slot.
pub const ALL_FIT_INLINE: CallPredicate =
    |bytes, shape| bytes.saturating_mul(shape.ranks) <= INLINE_BYTES;
/// Holds if the payload fits in the smallest data slot, and is too short for an arena offer.
pub const FITS_EAGER: CallPredicate =
    |bytes, shape| bytes <= EAGER_BYTES && !is_arena_size(bytes, shape.is_oversubscribed);
/// Holds if the blocks for all ranks together fit in the smallest data slot, and a block is too
/// short for an arena offer.
pub const ALL_FIT_EAGER: CallPredicate = |bytes, shape| {
    bytes.saturating_mul(shape.ranks) <= EAGER_BYTES
        && !is_arena_size(bytes, shape.is_oversubscribed)
};
/// The size of the smallest data slot in bytes.
pub const EAGER_BYTES: usize = 4096;

/// One row of the table.
#[derive(Debug)]
pub struct Algorithm {
    /// The operations that the algorithm performs.
    pub kinds: &'static [OpKind],
    /// The name of the algorithm, unique within each operation.
    pub name: &'static str,
    /// A description in one line.
    pub description: &'static str,
    /// Whether the algorithm supports a call, on the ranks that it is made for.
    pub fits: CallPredicate,
    /// Whether the algorithm is the preferred one for a call that it supports.
    pub pays: CallPredicate,
    /// Whether the algorithm folds the vectors of all ranks at once and in rank order, or folds
    /// nothing. A `canonical` call requires this.
    pub ordered: bool,
    /// The function of the algorithm.
    pub body: AlgorithmBody,
}

impl Algorithm {
    /// Returns the number of the algorithm within one operation, from 1. The ranks compare this
    /// number to check that they chose the same algorithm.
    pub fn number(&self, kind: OpKind) -> u8 {
        let before = BY_KIND[kind as usize].iter().position(|&row| std::ptr::eq(row, self));
        before.and_then(|before| u8::try_from(before + 1).ok()).unwrap_or(u8::MAX)
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

/// The rows by operation, so that the selection reads only the rows of the call's operation.
static BY_KIND: LazyLock<[Box<[&Algorithm]>; OpKind::ALL.len()]> = LazyLock::new(|| {
    let of = |kind| ALGORITHMS.iter().copied().filter(move |row| row.kinds.contains(&kind));
    OpKind::ALL.map(|kind| of(kind).collect())
});

/// Returns the rows of one operation, in order of preference.
pub fn algorithms(kind: OpKind) -> impl Iterator<Item = &'static Algorithm> {
    BY_KIND[kind as usize].iter().copied()
}
