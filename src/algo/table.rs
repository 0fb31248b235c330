//! The table of algorithms: all rows, in order of preference. The file of each algorithm contains
//! the row itself.
//!
//! For a call, the first row of its operation that supports the call and pays is selected:
//!
//! - In a group on one node, a shared-memory algorithm.
//! - In a group on several nodes with several ranks on some nodes, a hierarchical algorithm. It
//!   reduces in each node, exchanges between nodes, and distributes in each node.
//! - Otherwise an algorithm over messages alone.
//!
//! A row that never pays is still useful: a call can request it by name, or it can be the only row
//! that folds in rank order.

use super::operation::RunningAlgorithm;
use super::row::Algorithm;
use super::{hierarchical, message, shared};
use crate::transport::OpKind;
use std::sync::LazyLock;

static ALGORITHMS: &[&Algorithm] = &[
    &shared::all_reduce::small::INLINE,
    &shared::all_reduce::small::EAGER,
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
    &shared::reduce::small::INLINE,
    &shared::reduce::small::EAGER,
    &shared::reduce::staged::ROW,
    &hierarchical::reduce::two_level::ROW,
    &message::reduce::reduce_scatter_gather::ROW,
    &message::reduce::binomial::ROW,
    &message::reduce::ordered::ROW,
    &shared::broadcast::small::INLINE,
    &shared::broadcast::small::EAGER,
    &shared::broadcast::cma_write::ROW,
    &shared::broadcast::staged::ROW,
    &hierarchical::broadcast::two_level::ROW,
    &message::broadcast::binomial::ROW,
    &message::broadcast::chain::ROW,
    &shared::all_gather::small::INLINE,
    &shared::all_gather::small::EAGER,
    &shared::all_gather::cma_write::ROW,
    &shared::all_gather::cma_read::ROW,
    &shared::all_gather::staged::ROW,
    &hierarchical::all_gather::split_rail::ROW,
    &message::all_gather::bruck::ROW,
    &message::all_gather::ring::ROW,
    &shared::reduce_scatter::small::INLINE,
    &shared::reduce_scatter::small::EAGER,
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
    &shared::all_to_all::small::INLINE,
    &shared::all_to_all::small::EAGER,
    &shared::all_to_all::cma_write::ROW,
    &shared::all_to_all::cma_read::ROW,
    &shared::all_to_all::staged::ROW,
    &message::all_to_all::bruck::ROW,
    &message::all_to_all::pairwise::ROW,
    &shared::scan::small::INLINE,
    &shared::scan::small::EAGER,
    &shared::scan::staged::ROW,
    &message::scan::chain::ROW,
    &message::scan::ordered::ROW,
    &shared::barrier::flags::ROW,
    &hierarchical::barrier::two_level::ROW,
    &message::barrier::dissemination::ROW,
];

impl Algorithm {
    /// Returns the number of the algorithm among the algorithms of one operation, counted from 1.
    /// The ranks compare this number to check that they selected the same algorithm.
    pub fn number(&self, kind: OpKind) -> u8 {
        let before = BY_KIND[kind as usize].iter().position(|&row| std::ptr::eq(row, self));
        before.and_then(|before| u8::try_from(before + 1).ok()).unwrap_or(u8::MAX)
    }

    /// Returns the name of the algorithm, and its number for the operation `kind`.
    pub fn running(&self, kind: OpKind) -> RunningAlgorithm {
        RunningAlgorithm { name: self.name, number: self.number(kind) }
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

/// Returns the name of the algorithm with this number ([`Algorithm::number`]).
pub fn algorithm_name(kind: OpKind, number: u8) -> Option<&'static str> {
    let index = usize::from(number).checked_sub(1)?;
    BY_KIND[kind as usize].get(index).map(|row| row.name)
}
