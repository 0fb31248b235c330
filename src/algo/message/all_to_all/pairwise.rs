//! Pairwise all-to-all: in each round, each rank sends to one rank and receives from one other
//! rank. The pairs differ from round to round, so that no rank receives from all ranks at the same
//! time. Several rounds are in flight at the same time.

use crate::algo::message::{MessageOperation, Team};
use crate::algo::row::Algorithm;
use crate::base::error::Result;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllToAll, OpKind::AllToAllV],
    name: "pairwise",
    description: "messages, each block from its owner to its destination, with a limited number in flight",
    ..Algorithm::message(run)
};

/// Runs the algorithm between all ranks.
///
/// # Errors
/// As [`crate::algo::message::MessageExchange::wait`]; `Mismatch` if a rank sends a length that the
/// receiver does not expect.
pub fn run(call: &mut MessageOperation<'_>, team: Team<'_>) -> Result<()> {
    let operation = call.operation;
    let me = team.own_position();
    call.copy_own_block(operation.recv_block(me), operation.send_block(me))?;
    let exchange = call.exchange(team);
    exchange.exchange_with_all(|to| operation.send_block(to), |from| operation.recv_block(from))
}
