//! Pairwise all-to-all: in each round, each rank sends to one rank and receives from another. Each
//! round has different pairs, so that no rank receives from all ranks at once. Several rounds are
//! in flight at the same time.

use crate::algo::Operation;
use crate::algo::message::{MAX_POSTED_STRIPES, MessageOperation, Team};
use crate::algo::pattern::pairwise;
use crate::algo::table::{ALWAYS, Algorithm, AlgorithmBody};
use crate::base::error::Result;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllToAll, OpKind::AllToAllV],
    name: "pairwise",
    description: "messages, each block from its owner to its destination, with a limited number in flight",
    fits: ALWAYS,
    pays: ALWAYS,
    ordered: true,
    body: AlgorithmBody::Message(run),
};

/// Runs the algorithm between all ranks.
///
/// # Errors
/// As [`crate::algo::message::MessageExchange::wait`]; `Mismatch` if a rank sends a length that the
/// receiver does not expect.
pub fn run(
    call: &mut MessageOperation<'_>,
    team: Team<'_>,
    operation: &Operation<'_>,
) -> Result<()> {
    let (size, me) = (team.size(), team.own_position());
    call.copy_own_block(operation.recv_block(me), operation.send_block(me))?;
    let mut exchange = call.exchange(team);
    for distance in 1..size {
        let (to, from) =
            (pairwise::send_peer(size, me, distance), pairwise::receive_peer(size, me, distance));
        exchange.receive(from, operation.recv_block(from));
        exchange.send(to, operation.send_block(to));
        exchange.wait_until_at_most(MAX_POSTED_STRIPES)?;
    }
    exchange.finish()
}
