//! Broadcast along a chain: each rank receives the vector from the rank before it and sends it
//! once, to the rank after it.

use super::send_down_tree;
use crate::algo::message::{MessageOperation, Team};
use crate::algo::pattern::tree;
use crate::algo::row::Algorithm;
use crate::base::error::Result;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Broadcast],
    name: "chain",
    description: "messages along a chain, in segments",
    ..Algorithm::message(run)
};

/// Runs the algorithm between all ranks.
///
/// # Errors
/// As [`crate::algo::message::MessageExchange::wait`].
pub fn run(call: &mut MessageOperation<'_>, team: Team<'_>) -> Result<()> {
    let operation = call.operation;
    let position = tree::chain_position(team.size(), operation.root()?, team.own_position());
    send_down_tree(call, team, &position, operation.send, operation.recv)
}
