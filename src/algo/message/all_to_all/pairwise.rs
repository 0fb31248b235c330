//! In each round everybody sends to one rank, and hears from another: the next round's are others
//! again, so that nobody is spoken to by all. A few rounds are on their way at once.

use crate::algo::Operation;
use crate::algo::message::{MAX_POSTED_STRIPES, MessageOperation, Team};
use crate::algo::pattern::pairwise;
use crate::algo::table::{ALWAYS, Algorithm, AlgorithmBody};
use crate::base::error::Result;
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllToAll, OpKind::AllToAllV],
    name: "pairwise",
    description: "messages, each block from its owner to whom it is for, a few at a time",
    fits: ALWAYS,
    pays: ALWAYS,
    ordered: true,
    body: AlgorithmBody::Message(run),
};

/// All ranks.
///
/// # Errors
/// As [`crate::algo::message::Exchange::wait`]; `Mismatch` where a rank sends what another does not
/// expect.
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
