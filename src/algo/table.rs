//! The table of algorithms. A row stands in the file of its algorithm; here is the order of
//! preference.
//!
//! The order matters: within an operation the first row that can and pays is taken. Inside one node
//! that is one of the shared algorithms; between nodes one that goes inside, between, inside, where
//! a node has several ranks; else one of messages alone. A row that never pays here may still be
//! asked for, or be the only one that folds in rank order.

use super::fold::FEW;
use super::hierarchical::{self, Levels};
use super::message::{self, Call, Team};
use super::operation::Operation;
use super::select::Shape;
use super::shared::direct::may_be_asked;
use super::shared::one_step::OneStep;
use super::shared::{self, Steps};
use crate::base::error::Result;
use crate::transport::OpKind;
use crate::transport::line::INLINE_BYTES;
use std::sync::LazyLock;

static ALGORITHMS: &[&Algorithm] = &[
    &shared::all_reduce::inline::ROW,
    &shared::all_reduce::short::ROW,
    &shared::all_reduce::one_shot::ROW,
    &shared::all_reduce::push::ROW,
    &shared::all_reduce::pull::ROW,
    &shared::all_reduce::two_shot::ROW,
    &hierarchical::all_reduce::leader::ROW,
    &hierarchical::all_reduce::lanes::ROW,
    &message::all_reduce::direct::ROW,
    &message::all_reduce::doubling::ROW,
    &message::all_reduce::rabenseifner::ROW,
    &message::all_reduce::ring::ROW,
    &message::all_reduce::ordered::ROW,
    &shared::reduce::inline::ROW,
    &shared::reduce::short::ROW,
    &shared::reduce::staged::ROW,
    &hierarchical::reduce::leaders::ROW,
    &message::reduce::scatter_gather::ROW,
    &message::reduce::tree::ROW,
    &message::reduce::ordered::ROW,
    &shared::broadcast::inline::ROW,
    &shared::broadcast::short::ROW,
    &shared::broadcast::push::ROW,
    &shared::broadcast::staged::ROW,
    &hierarchical::broadcast::leaders::ROW,
    &message::broadcast::tree::ROW,
    &message::broadcast::chain::ROW,
    &shared::all_gather::inline::ROW,
    &shared::all_gather::short::ROW,
    &shared::all_gather::push::ROW,
    &shared::all_gather::pull::ROW,
    &shared::all_gather::staged::ROW,
    &hierarchical::all_gather::lanes::ROW,
    &message::all_gather::bruck::ROW,
    &message::all_gather::ring::ROW,
    &shared::reduce_scatter::inline::ROW,
    &shared::reduce_scatter::short::ROW,
    &shared::reduce_scatter::pull::ROW,
    &shared::reduce_scatter::staged::ROW,
    &hierarchical::reduce_scatter::lanes::ROW,
    &message::reduce_scatter::pairwise::ROW,
    &message::reduce_scatter::ring::ROW,
    &message::reduce_scatter::ordered::ROW,
    &shared::gather::staged::ROW,
    &hierarchical::gather::leaders::ROW,
    &message::gather::tree::ROW,
    &message::gather::direct::ROW,
    &shared::scatter::staged::ROW,
    &hierarchical::scatter::leaders::ROW,
    &message::scatter::tree::ROW,
    &message::scatter::direct::ROW,
    &shared::all_to_all::inline::ROW,
    &shared::all_to_all::short::ROW,
    &shared::all_to_all::push::ROW,
    &shared::all_to_all::pull::ROW,
    &shared::all_to_all::staged::ROW,
    &message::all_to_all::bruck::ROW,
    &message::all_to_all::pairwise::ROW,
    &shared::scan::inline::ROW,
    &shared::scan::short::ROW,
    &shared::scan::staged::ROW,
    &message::scan::chain::ROW,
    &message::scan::ordered::ROW,
    &shared::barrier::flags::ROW,
    &hierarchical::barrier::leader::ROW,
    &message::barrier::dissemination::ROW,
];

/// An algorithm, by what it runs on.
#[derive(Clone, Copy, Debug)]
pub enum Body {
    /// One step in memory that all ranks share.
    OneStep(&'static OneStep),
    /// Memory that all ranks share.
    Shared(fn(&mut Steps<'_>, &Operation<'_>) -> Result<()>),
    /// Messages alone; the team is all ranks.
    Message(fn(&mut Call<'_>, Team<'_>, &Operation<'_>) -> Result<()>),
    /// Memory inside nodes and messages between them.
    Hierarchical(fn(&mut Levels<'_>, &Operation<'_>) -> Result<()>),
}

/// Something about a call whose count argument is this many bytes ([`Operation::bytes`]), in a
/// group of this shape.
pub type Test = fn(bytes: usize, shape: &Shape) -> bool;

/// For any call.
pub const ALWAYS: Test = |_, _| true;
/// For ranks that read each other's memory; a lone one has none to read.
pub const ATTACHED: Test = |_, shape| shape.attached || shape.ranks == 1;
/// For ranks that write each other's memory too.
pub const REACHED: Test =
    |bytes, shape| ATTACHED(bytes, shape) && (shape.reached || shape.ranks == 1);
/// For so few of them that what is known of each lives on the stack.
pub const ATTACHED_FEW: Test = |bytes, shape| ATTACHED(bytes, shape) && shape.ranks <= FEW;
/// The same.
pub const REACHED_FEW: Test = |bytes, shape| REACHED(bytes, shape) && shape.ranks <= FEW;
/// For what fits beside the step number.
pub const FITS_A_LINE: Test = |bytes, _| bytes <= INLINE_BYTES;
/// For blocks of which all ranks' together do.
pub const ALL_FIT_A_LINE: Test = |bytes, shape| bytes.saturating_mul(shape.ranks) <= INLINE_BYTES;
/// For what fits the smallest slot, and is no reason to ask whether it could be read where the
/// caller has it.
pub const SHORT: Test = |bytes, shape| bytes <= SHORT_BYTES && !may_be_asked(bytes, shape.crowded);
/// For blocks of which all ranks' together are so short.
pub const SHORT_IN_ALL: Test = |bytes, shape| {
    bytes.saturating_mul(shape.ranks) <= SHORT_BYTES && !may_be_asked(bytes, shape.crowded)
};
/// What the smallest slot holds.
pub const SHORT_BYTES: usize = 4096;

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
    pub fits: Test,
    /// Whether it should perform it.
    pub pays: Test,
    /// Vectors of all ranks are folded at once and in rank order, or nothing is folded: what
    /// `canonical` asks for.
    pub ordered: bool,
    /// The algorithm.
    pub body: Body,
}

impl Algorithm {
    /// Its number among those of one operation, from 1, by which ranks compare what they have
    /// chosen.
    pub fn number(&self, kind: OpKind) -> u8 {
        let before = BY_KIND[kind as usize].iter().position(|&row| std::ptr::eq(row, self));
        before.and_then(|before| u8::try_from(before + 1).ok()).unwrap_or(u8::MAX)
    }

    /// Whether it can perform a call whose count argument is this many bytes.
    pub fn can(&self, bytes: usize, shape: &Shape) -> bool {
        let ranks = match self.body {
            Body::OneStep(_) | Body::Shared(_) => shape.nodes == 1,
            Body::Message(_) => shape.nodes > 1,
            Body::Hierarchical(_) => shape.nodes > 1 && shape.largest > 1,
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
