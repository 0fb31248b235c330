//! Scatter down a binomial tree, for small blocks: each rank receives the blocks of its subtree
//! from its parent in one message, and sends each child the blocks of the child's subtree.

use crate::algo::message::gather::binomial::{fits, pays};
use crate::algo::message::{MessageOperation, Team};
use crate::algo::pattern::{pairwise, tree};
use crate::algo::row::Algorithm;
use crate::base::buffer::Dst;
use crate::base::error::Result;
use crate::kernel;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Scatter],
    name: "binomial",
    description: "messages down a binomial tree, which distribute the blocks; at most 1 MiB in total",
    fits,
    pays,
    ..Algorithm::message(run)
};

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
    let blocks = memory.slice(0, subtree.len() * len);
    let mut exchange = call.exchange(team);
    match position.parent {
        Some(parent) => {
            let incoming = exchange.receive(parent, blocks);
            exchange.wait(incoming)?;
        }
        None => {
            for distance in subtree.clone() {
                let block = operation.send_block(pairwise::send_peer(size, root, distance));
                kernel::copy(blocks.slice(distance * len, len), block);
            }
        }
    }
    for &child in &position.children {
        let child_subtree = tree::subtree_span(size, root, child);
        let first = (child_subtree.start - subtree.start) * len;
        exchange.send(child, blocks.as_src().slice(first, child_subtree.len() * len));
    }
    kernel::copy(operation.recv, blocks.as_src().slice(0, len));
    exchange.finish()?;
    call.return_scratch(scratch);
    Ok(())
}
