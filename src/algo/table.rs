//! The table of algorithms. A row stands in the file of its algorithm; here is the order of
//! preference.
//!
//! The order matters: within an operation the first row that can and pays is taken. Inside one node
//! that is one of the shared algorithms; between nodes one that goes inside, between, inside, where
//! a node has several ranks; else one of messages alone. A row that never pays here may still be
//! asked for, or be the only one that folds in rank order.

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

/// An algorithm, by what it runs on.
#[derive(Clone, Copy, Debug)]
pub enum AlgorithmBody {
    /// One step in memory that all ranks share.
    OneStep(&'static OneStepAlgorithm),
    /// Memory that all ranks share.
    Shared(fn(&mut ShmSequencer<'_>, &Operation<'_>) -> Result<()>),
    /// Messages alone; the team is all ranks.
    Message(fn(&mut MessageOperation<'_>, Team<'_>, &Operation<'_>) -> Result<()>),
    /// Memory inside nodes and messages between them.
    Hierarchical(fn(&mut HierarchicalOperation<'_>, &Operation<'_>) -> Result<()>),
}

/// Something about a call whose count argument is this many bytes ([`Operation::bytes`]), in a
/// group of this shape.
pub type CallPredicate = fn(bytes: usize, shape: &GroupShape) -> bool;

/// For any call.
pub const ALWAYS: CallPredicate = |_, _| true;
/// For ranks that read each other's memory; a lone one has none to read.
pub const HAS_CMA: CallPredicate = |_, shape| shape.has_cma || shape.ranks == 1;
/// For ranks that write each other's memory too.
pub const HAS_CMA_WRITE: CallPredicate =
    |bytes, shape| HAS_CMA(bytes, shape) && (shape.has_cma_write || shape.ranks == 1);
/// For so few of them that what is known of each lives on the stack.
pub const HAS_CMA_AND_FEW_RANKS: CallPredicate =
    |bytes, shape| HAS_CMA(bytes, shape) && shape.ranks <= MAX_STACK_RANKS;
/// The same.
pub const HAS_CMA_WRITE_AND_FEW_RANKS: CallPredicate =
    |bytes, shape| HAS_CMA_WRITE(bytes, shape) && shape.ranks <= MAX_STACK_RANKS;
/// For what fits beside the step number.
pub const FITS_INLINE: CallPredicate = |bytes, _| bytes <= INLINE_BYTES;
/// For blocks of which all ranks' together do.
pub const ALL_FIT_INLINE: CallPredicate =
    |bytes, shape| bytes.saturating_mul(shape.ranks) <= INLINE_BYTES;
/// For what fits the smallest slot, and is no reason to ask whether it could be read where the
/// caller has it.
pub const FITS_EAGER: CallPredicate =
    |bytes, shape| bytes <= EAGER_BYTES && !is_arena_size(bytes, shape.is_oversubscribed);
/// For blocks of which all ranks' together are so short.
pub const ALL_FIT_EAGER: CallPredicate = |bytes, shape| {
    bytes.saturating_mul(shape.ranks) <= EAGER_BYTES
        && !is_arena_size(bytes, shape.is_oversubscribed)
};
/// What the smallest slot holds.
pub const EAGER_BYTES: usize = 4096;

/// One row of the table.
#[derive(Debug)]
pub struct Algorithm {
    /// The operations that it performs.
    pub kinds: &'static [OpKind],
    /// Its name, unique within each of them.
    pub name: &'static str,
    /// What it does, in one line.
    pub description: &'static str,
    /// Whether a call is within its means, on the ranks that it is made for.
    pub fits: CallPredicate,
    /// Whether it should perform it.
    pub pays: CallPredicate,
    /// Vectors of all ranks are folded at once and in rank order, or nothing is folded: what
    /// `canonical` asks for.
    pub ordered: bool,
    /// The algorithm.
    pub body: AlgorithmBody,
}

impl Algorithm {
    /// Its number among those of one operation, from 1, by which ranks compare what they have
    /// chosen.
    pub fn number(&self, kind: OpKind) -> u8 {
        let before = BY_KIND[kind as usize].iter().position(|&row| std::ptr::eq(row, self));
        before.and_then(|before| u8::try_from(before + 1).ok()).unwrap_or(u8::MAX)
    }

    /// Whether it can perform a call whose count argument is this many bytes.
    pub fn can_run(&self, bytes: usize, shape: &GroupShape) -> bool {
        let ranks = match self.body {
            AlgorithmBody::OneStep(_) | AlgorithmBody::Shared(_) => shape.nodes == 1,
            AlgorithmBody::Message(_) => shape.nodes > 1,
            AlgorithmBody::Hierarchical(_) => shape.nodes > 1 && shape.max_ranks_per_node > 1,
        };
        ranks && (self.fits)(bytes, shape)
    }
}

/// The rows of each operation, so that a call looks at no others.
static BY_KIND: LazyLock<[Box<[&Algorithm]>; OpKind::ALL.len()]> = LazyLock::new(|| {
    let of = |kind| ALGORITHMS.iter().copied().filter(move |row| row.kinds.contains(&kind));
    OpKind::ALL.map(|kind| of(kind).collect())
});

/// The rows of one operation, in order of preference.
pub fn algorithms(kind: OpKind) -> impl Iterator<Item = &'static Algorithm> {
    BY_KIND[kind as usize].iter().copied()
}
