//! All-reduce in rank order: each rank folds its slice of all vectors at once and in rank order,
//! and the folded slices are passed around the ring. The result thus does not depend on which ranks
//! share a node.

use crate::algo::message::{MessageOperation, Team, all_gather, reduce_scatter};
use crate::algo::pattern::slices::owned_slice;
use crate::algo::row::Algorithm;
use crate::base::error::Result;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllReduce],
    name: "ordered",
    description: "messages, each rank reduces its slice of all vectors at once in rank order, slices pass around \
                  the ring",
    ..Algorithm::message(run)
};

/// Runs the algorithm between all ranks.
///
/// # Errors
/// As [`crate::algo::message::MessageExchange::wait`], and `OutOfMemory`.
pub fn run(call: &mut MessageOperation<'_>, team: Team<'_>) -> Result<()> {
    let operation = call.operation;
    let (send, recv) = (operation.send, operation.recv);
    let slice = |rank: usize| owned_slice(operation.bytes(), team.size(), rank);
    let result = |rank: usize| recv.range(&slice(rank));
    let block = |rank: usize| send.range(&slice(rank));
    reduce_scatter::ordered::run_team(call, team, &block, result(team.own_position()))?;
    all_gather::ring::run_team(call, team, &result)
}
