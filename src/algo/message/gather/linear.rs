//! Everybody sends its block to the root. One hop, and nothing goes twice.

use crate::algo::Operation;
use crate::algo::message::{MAX_POSTED_STRIPES, MessageOperation, Team};
use crate::algo::pattern::pairwise;
use crate::algo::table::{ALWAYS, Algorithm, AlgorithmBody};
use crate::base::error::Result;
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Gather, OpKind::GatherV],
    name: "linear",
    description: "messages, everybody sends its block to the root",
    fits: ALWAYS,
    pays: ALWAYS,
    ordered: true,
    body: AlgorithmBody::Message(run),
};

/// All ranks.
///
/// # Errors
/// As [`crate::algo::message::Exchange::wait`]; `Mismatch` where a rank sends what the root does
/// not expect.
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
