//! The table of algorithms: one row each, with what it can do and when it pays.
//!
//! The order matters: within an operation the first row that can and pays is taken. Inside one node that is one of
//! the shared algorithms; between nodes one that goes inside, between, inside, where a node has several ranks; else
//! one of messages alone.

use super::hierarchical::{self, Levels};
use super::message::{Call, Team, all_reduce, flat};
use super::operation::Operation;
use super::select::Shape;
use super::shared::{self, Steps};
use crate::base::error::Result;
use crate::transport::OpKind;
use crate::transport::line::INLINE_BYTES;

/// An algorithm, by what it runs on.
#[derive(Clone, Copy, Debug)]
pub enum Body {
    /// Memory that all ranks share.
    Shared(fn(&mut Steps<'_>, &Operation<'_>) -> Result<()>),
    /// Messages alone; the team is all ranks.
    Message(fn(&mut Call<'_>, Team<'_>, &Operation<'_>) -> Result<()>),
    /// Memory inside nodes and messages between them.
    Hierarchical(fn(&mut Levels<'_>, &Operation<'_>) -> Result<()>),
}

/// One row of the table.
#[derive(Debug)]
pub struct Algorithm {
    /// The operation that it performs.
    pub kind: OpKind,
    /// Its name, unique within the operation.
    pub name: &'static str,
    /// What it does, in one line.
    pub description: &'static str,
    /// Whether a call whose count argument is this many bytes is within its means, on the ranks that it is made for.
    pub fits: fn(bytes: usize, shape: &Shape) -> bool,
    /// Whether it should perform it, given the shape of the group.
    pub pays: fn(bytes: usize, shape: &Shape) -> bool,
    /// The algorithm.
    pub body: Body,
}

impl Algorithm {
    /// Its number among those of the operation, from 1, by which ranks compare what they have chosen.
    pub fn number(&self) -> u8 {
        let mut rows = ALGORITHMS.iter().filter(|row| row.kind == self.kind);
        let before = rows.position(|row| std::ptr::eq(row, self));
        before.and_then(|before| u8::try_from(before + 1).ok()).unwrap_or(u8::MAX)
    }

    /// Whether it can perform a call whose count argument is this many bytes.
    pub fn can(&self, bytes: usize, shape: &Shape) -> bool {
        let ranks = match self.body {
            Body::Shared(_) => shape.nodes == 1,
            Body::Message(_) => shape.nodes > 1,
            Body::Hierarchical(_) => shape.nodes > 1 && shape.largest > 1,
        };
        ranks && (self.fits)(bytes, shape)
    }
}

type Test = fn(usize, &Shape) -> bool;

const ALWAYS: Test = |_, _| true;
const FITS_A_LINE: Test = |bytes, _| bytes <= INLINE_BYTES;
/// Whoever has the scratch memory of Bruck's algorithm has room for all blocks twice.
const FITS_SCRATCH: Test = |bytes, shape| bytes.saturating_mul(shape.ranks) <= 1 << 20;

pub(super) static ALGORITHMS: &[Algorithm] = &[
    Algorithm {
        kind: OpKind::AllReduce,
        name: "inline",
        description: "payload beside the step number, everybody folds all; at most 48 bytes",
        fits: FITS_A_LINE,
        pays: ALWAYS,
        body: Body::Shared(shared::all_reduce::inline),
    },
    Algorithm {
        kind: OpKind::AllReduce,
        name: "one_shot",
        description: "staged in slots, everybody folds all vectors; one hop",
        fits: ALWAYS,
        pays: one_shot_pays,
        body: Body::Shared(shared::all_reduce::one_shot),
    },
    Algorithm {
        kind: OpKind::AllReduce,
        name: "two_shot",
        description: "staged in slots, each rank folds its slice, all gather; two hops",
        fits: ALWAYS,
        pays: ALWAYS,
        body: Body::Shared(shared::all_reduce::two_shot),
    },
    Algorithm {
        kind: OpKind::AllReduce,
        name: "leader",
        description: "one rank of each node folds for its node and exchanges messages with the others",
        fits: ALWAYS,
        pays: leader_pays,
        body: Body::Hierarchical(hierarchical::all_reduce::leader),
    },
    Algorithm {
        kind: OpKind::AllReduce,
        name: "lanes",
        description: "the ranks of each node fold a slice each and exchange messages about it",
        fits: ALWAYS,
        pays: ALWAYS,
        body: Body::Hierarchical(hierarchical::all_reduce::lanes),
    },
    Algorithm {
        kind: OpKind::AllReduce,
        name: "direct",
        description: "messages from all to all, everybody folds all vectors; one hop",
        fits: ALWAYS,
        pays: |bytes, shape| all_reduce::direct_pays(bytes, shape.ranks),
        body: Body::Message(flat::direct),
    },
    Algorithm {
        kind: OpKind::AllReduce,
        name: "doubling",
        description: "messages, recursive doubling of whole vectors",
        fits: ALWAYS,
        pays: |bytes, shape| all_reduce::doubling_pays(bytes, shape.ranks),
        body: Body::Message(flat::doubling),
    },
    Algorithm {
        kind: OpKind::AllReduce,
        name: "rabenseifner",
        description: "messages, recursive halving and doubling",
        fits: ALWAYS,
        pays: |bytes, shape| all_reduce::rabenseifner_pays(bytes, shape.ranks),
        body: Body::Message(flat::rabenseifner),
    },
    Algorithm {
        kind: OpKind::AllReduce,
        name: "ring",
        description: "messages, blocks go round twice in segments",
        fits: ALWAYS,
        pays: ALWAYS,
        body: Body::Message(flat::ring),
    },
    Algorithm {
        kind: OpKind::Reduce,
        name: "inline",
        description: "payload beside the step number, the root folds; at most 48 bytes",
        fits: FITS_A_LINE,
        pays: ALWAYS,
        body: Body::Shared(shared::reduce::inline),
    },
    Algorithm {
        kind: OpKind::Reduce,
        name: "staged",
        description: "staged in slots, the root folds",
        fits: ALWAYS,
        pays: ALWAYS,
        body: Body::Shared(shared::reduce::staged),
    },
    Algorithm {
        kind: OpKind::Reduce,
        name: "leaders",
        description: "one rank of each node folds for its node, messages up a tree of those",
        fits: ALWAYS,
        pays: ALWAYS,
        body: Body::Hierarchical(hierarchical::reduce::leaders),
    },
    Algorithm {
        kind: OpKind::Reduce,
        name: "tree",
        description: "messages up a binomial tree",
        fits: ALWAYS,
        pays: ALWAYS,
        body: Body::Message(flat::reduce),
    },
    Algorithm {
        kind: OpKind::Broadcast,
        name: "inline",
        description: "payload beside the step number; at most 48 bytes",
        fits: FITS_A_LINE,
        pays: ALWAYS,
        body: Body::Shared(shared::broadcast::inline),
    },
    Algorithm {
        kind: OpKind::Broadcast,
        name: "staged",
        description: "through the root's slots",
        fits: ALWAYS,
        pays: ALWAYS,
        body: Body::Shared(shared::broadcast::staged),
    },
    Algorithm {
        kind: OpKind::Broadcast,
        name: "leaders",
        description: "messages down a tree of one rank of each node, through slots inside",
        fits: ALWAYS,
        pays: ALWAYS,
        body: Body::Hierarchical(hierarchical::broadcast::leaders),
    },
    Algorithm {
        kind: OpKind::Broadcast,
        name: "tree",
        description: "messages down a binomial tree",
        fits: ALWAYS,
        pays: tree_pays,
        body: Body::Message(flat::broadcast_tree),
    },
    Algorithm {
        kind: OpKind::Broadcast,
        name: "chain",
        description: "messages along a chain, in segments",
        fits: ALWAYS,
        pays: ALWAYS,
        body: Body::Message(flat::broadcast_chain),
    },
    Algorithm {
        kind: OpKind::AllGather,
        name: "inline",
        description: "blocks beside the step number; at most 48 bytes each",
        fits: FITS_A_LINE,
        pays: ALWAYS,
        body: Body::Shared(shared::all_gather::inline),
    },
    Algorithm {
        kind: OpKind::AllGather,
        name: "staged",
        description: "blocks staged in slots, everybody copies all",
        fits: ALWAYS,
        pays: ALWAYS,
        body: Body::Shared(shared::all_gather::staged),
    },
    Algorithm {
        kind: OpKind::AllGather,
        name: "lanes",
        description: "the ranks of each node send a slice of its blocks each round the nodes",
        fits: ALWAYS,
        pays: ALWAYS,
        body: Body::Hierarchical(hierarchical::all_gather::lanes),
    },
    Algorithm {
        kind: OpKind::AllGather,
        name: "bruck",
        description: "messages, what everybody has doubles; at most 1 MiB in all",
        fits: FITS_SCRATCH,
        pays: bruck_pays,
        body: Body::Message(flat::bruck),
    },
    Algorithm {
        kind: OpKind::AllGather,
        name: "ring",
        description: "messages, blocks go round",
        fits: ALWAYS,
        pays: ALWAYS,
        body: Body::Message(flat::all_gather_ring),
    },
    Algorithm {
        kind: OpKind::ReduceScatter,
        name: "staged",
        description: "staged in slots, each rank folds its own block; one hop",
        fits: ALWAYS,
        pays: ALWAYS,
        body: Body::Shared(shared::reduce_scatter::staged),
    },
    Algorithm {
        kind: OpKind::ReduceScatter,
        name: "lanes",
        description: "the ranks of each node fold a slice of all blocks each and exchange messages about it",
        fits: ALWAYS,
        pays: ALWAYS,
        body: Body::Hierarchical(hierarchical::reduce_scatter::lanes),
    },
    Algorithm {
        kind: OpKind::ReduceScatter,
        name: "pairwise",
        description: "messages, everybody sends each block to its owner",
        fits: ALWAYS,
        pays: ALWAYS,
        body: Body::Message(flat::pairwise),
    },
    Algorithm {
        kind: OpKind::ReduceScatter,
        name: "ring",
        description: "messages, each block goes round to its owner",
        fits: ALWAYS,
        pays: ALWAYS,
        body: Body::Message(flat::reduce_scatter_ring),
    },
    Algorithm {
        kind: OpKind::Barrier,
        name: "flags",
        description: "everybody reads everybody's line; one hop",
        fits: ALWAYS,
        pays: ALWAYS,
        body: Body::Shared(shared::barrier::flags),
    },
    Algorithm {
        kind: OpKind::Barrier,
        name: "leader",
        description: "through one rank of each node, and messages between those",
        fits: ALWAYS,
        pays: ALWAYS,
        body: Body::Hierarchical(hierarchical::barrier::leader),
    },
    Algorithm {
        kind: OpKind::Barrier,
        name: "dissemination",
        description: "messages over distances that double",
        fits: ALWAYS,
        pays: ALWAYS,
        body: Body::Message(flat::dissemination),
    },
];

/// Up to which size one hop with all the reading beats two hops with a share of it. A hop costs about
/// 200 ns, or a context switch of a few microseconds where ranks outnumber cores; beyond two ranks each
/// further one adds its whole vector to what one hop reads. Two ranks read the same either way.
fn one_shot_pays(bytes: usize, shape: &Shape) -> bool {
    let limit = match (shape.ranks, shape.crowded) {
        (0..=2, _) => 64 << 10,
        (ranks, true) => (128 << 10) / ranks,
        (ranks, false) => (8 << 10) / ranks,
    };
    bytes <= limit
}

/// Up to which size one rank of each node is enough: more of them share the work, for two hops more inside.
fn leader_pays(bytes: usize, shape: &Shape) -> bool {
    shape.smallest == 1 || bytes <= 32 << 10
}

/// Up to which size a tree's fewer hops beat a chain's sending everything once.
fn tree_pays(bytes: usize, shape: &Shape) -> bool {
    bytes <= 1 << 20 || shape.ranks <= 2
}

/// Up to which size fewer messages beat a copy less.
fn bruck_pays(bytes: usize, shape: &Shape) -> bool {
    bytes.saturating_mul(shape.ranks) <= 64 << 10
}
