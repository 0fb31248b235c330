//! Linear gather: each rank sends its block directly to the root. This takes one hop.

use crate::algo::message::{MessageOperation, Team};
use crate::algo::row::Algorithm;
use crate::base::error::Result;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Gather, OpKind::GatherV],
    name: "linear",
    description: "messages, each rank sends its block to the root",
    ..Algorithm::message(run)
};

/// Runs the algorithm between all ranks.
///
/// # Errors
/// As [`crate::algo::message::MessageExchange::wait`]; `Mismatch` if a rank sends a length that the
/// root does not expect.
pub fn run(call: &mut MessageOperation<'_>, team: Team<'_>) -> Result<()> {
    let operation = call.operation;
    let (me, root) = (team.own_position(), operation.root()?);
    if me == root {
        call.copy_own_block(operation.recv_block(me), operation.send)?;
    }
    let mut exchange = call.exchange(team);
    if me != root {
        exchange.send(root, operation.send);
        return exchange.finish();
    }
    exchange.receive_from_all(|from| operation.recv_block(from))
}
