//! Broadcast down a binomial tree: the number of hops grows with log2 of the number of ranks, and
//! the root sends the whole vector several times.

use super::send_down_tree;
use crate::algo::message::{MessageOperation, Team};
use crate::algo::pattern::tree;
use crate::algo::row::{Algorithm, GroupShape};
use crate::base::error::Result;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Broadcast],
    name: "binomial",
    description: "messages down a binomial tree",
    pays,
    ..Algorithm::message(run)
};

/// Returns whether the binomial tree is faster than the chain. The tree has fewer hops, but its
/// root sends the vector several times; in the chain, each rank sends the vector once.
fn pays(bytes: usize, shape: &GroupShape) -> bool {
    bytes <= 1 << 20 || shape.ranks <= 2
}

/// Runs the algorithm between all ranks.
///
/// # Errors
/// As [`crate::algo::message::MessageExchange::wait`].
pub fn run(call: &mut MessageOperation<'_>, team: Team<'_>) -> Result<()> {
    let operation = call.operation;
    let position = tree::binomial_position(team.size(), operation.root()?, team.own_position());
    send_down_tree(call, team, &position, operation.send, operation.recv)
}
