//! Linear gather: each rank sends its block to the root. This takes one hop, and sends each block
//! once.

use crate::algo::Operation;
use crate::algo::message::{MAX_POSTED_STRIPES, MessageOperation, Team};
use crate::algo::pattern::pairwise;
use crate::algo::table::{ALWAYS, Algorithm, AlgorithmBody};
use crate::base::error::Result;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Gather, OpKind::GatherV],
    name: "linear",
    description: "messages, each rank sends its block to the root",
    fits: ALWAYS,
    pays: ALWAYS,
    ordered: true,
    body: AlgorithmBody::Message(run),
};

/// Runs the algorithm between all ranks.
///
/// # Errors
/// As [`crate::algo::message::MessageExchange::wait`]; `Mismatch` if a rank sends a length that the
/// root does not expect.
pub fn run(
    call: &mut MessageOperation<'_>,
    team: Team<'_>,
    operation: &Operation<'_>,
) -> Result<()> {
    let (size, me, root) = (team.size(), team.own_position(), operation.root()?);
    if me == root {
        call.copy_own_block(operation.recv_block(me), operation.send)?;
    }
    let mut exchange = call.exchange(team);
    if me != root {
        exchange.send(root, operation.send);
        return exchange.finish();
    }
    for distance in 1..size {
        let from = pairwise::send_peer(size, me, distance);
        exchange.receive(from, operation.recv_block(from));
        exchange.wait_until_at_most(MAX_POSTED_STRIPES)?;
    }
    exchange.finish()
}
