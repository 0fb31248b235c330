//! Gather up a binomial tree, for small blocks: each rank receives the blocks of its children's
//! subtrees, and sends all blocks of its own subtree to its parent in one message.

use crate::algo::message::{MessageOperation, Team};
use crate::algo::pattern::{pairwise, tree};
use crate::algo::row::{Algorithm, GroupShape};
use crate::base::buffer::Dst;
use crate::base::error::Result;
use crate::kernel;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Gather],
    name: "binomial",
    description: "messages up a binomial tree, which collect the blocks; at most 1 MiB in total",
    fits,
    pays,
    ..Algorithm::message(run)
};

/// Returns whether all blocks together have at most 1 MiB, because the algorithm needs scratch
/// memory of that size.
pub(in crate::algo::message) fn fits(bytes: usize, shape: &GroupShape) -> bool {
    bytes.saturating_mul(shape.ranks) <= 1 << 20
}

/// Returns whether the tree, in which the root receives a few messages after each other, is faster
/// than one message from each rank to the root.
pub(in crate::algo::message) fn pays(bytes: usize, shape: &GroupShape) -> bool {
    shape.ranks >= 8 && bytes <= 4 << 10
}

/// Runs the algorithm between all ranks.
///
/// # Errors
/// As [`crate::algo::message::MessageExchange::wait`], and `OutOfMemory`.
pub fn run(call: &mut MessageOperation<'_>, team: Team<'_>) -> Result<()> {
    let operation = call.operation;
    let (size, me, root, len) =
        (team.size(), team.own_position(), operation.root()?, operation.bytes());
    let position = tree::binomial_position(size, root, me);
    let subtree = tree::subtree_span(size, root, me);
    let mut scratch = call.scratch(subtree.len() * len)?;
    // The blocks of this rank's subtree, in the order of their distances from the root.
    let memory = Dst::from(scratch.as_mut_slice());
    kernel::copy(memory.slice(0, len), operation.send);
    let mut exchange = call.exchange(team);
    for &child in &position.children {
        let child_subtree = tree::subtree_span(size, root, child);
        exchange.receive(
            child,
            memory.slice((child_subtree.start - subtree.start) * len, child_subtree.len() * len),
        );
    }
    exchange.wait_until_at_most(0)?;
    if let Some(parent) = position.parent {
        exchange.send(parent, memory.as_src().slice(0, subtree.len() * len));
    }
    exchange.finish()?;
    if position.parent.is_none() {
        for distance in subtree {
            let from = pairwise::send_peer(size, root, distance);
            kernel::copy(operation.recv_block(from), memory.as_src().slice(distance * len, len));
        }
    }
    call.return_scratch(scratch);
    Ok(())
}
