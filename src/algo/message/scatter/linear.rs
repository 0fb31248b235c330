//! Linear scatter: the root sends each rank its block directly. This takes one hop.

use crate::algo::message::{MAX_POSTED_STRIPES, MessageOperation, Team};
use crate::algo::pattern::pairwise;
use crate::algo::row::Algorithm;
use crate::base::error::Result;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Scatter, OpKind::ScatterV],
    name: "linear",
    description: "messages, the root sends each rank its block",
    ..Algorithm::message(run)
};

/// Runs the algorithm between all ranks.
///
/// # Errors
/// As [`crate::algo::message::MessageExchange::wait`]; `Mismatch` if a rank expects a length that
/// the root does not send.
pub fn run(call: &mut MessageOperation<'_>, team: Team<'_>) -> Result<()> {
    let operation = call.operation;
    let (size, me, root) = (team.size(), team.own_position(), operation.root()?);
    if me == root {
        call.copy_own_block(operation.recv, operation.send_block(me))?;
    }
    let mut exchange = call.exchange(team);
    if me != root {
        exchange.receive(root, operation.recv);
        return exchange.finish();
    }
    for distance in 1..size {
        let to = pairwise::send_peer(size, me, distance);
        exchange.send(to, operation.send_block(to));
        exchange.wait_until_at_most(MAX_POSTED_STRIPES)?;
    }
    exchange.finish()
}
