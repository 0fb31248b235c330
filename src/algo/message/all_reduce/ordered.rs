//! All-reduce in rank order: each rank folds its slice of all vectors at once and in rank order,
//! and the slices are passed around the ring. The result thus does not depend on which ranks share
//! a node.

use crate::algo::Operation;
use crate::algo::message::{MessageOperation, Team, all_gather, reduce_scatter};
use crate::algo::pattern::slices::owned_slice;
use crate::algo::table::{ALWAYS, Algorithm, AlgorithmBody};
use crate::base::error::Result;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllReduce],
    name: "ordered",
    description: "messages, each rank reduces its slice of all vectors at once in rank order, slices pass around \
                  the ring",
    fits: ALWAYS,
    pays: ALWAYS,
    ordered: true,
    body: AlgorithmBody::Message(run),
};

/// Runs the algorithm between all ranks.
///
/// # Errors
/// As [`crate::algo::message::MessageExchange::wait`], and `OutOfMemory`.
pub fn run(
    call: &mut MessageOperation<'_>,
    team: Team<'_>,
    operation: &Operation<'_>,
) -> Result<()> {
    let (send, recv) = (operation.send, operation.recv);
    let slice = |rank: usize| owned_slice(operation.bytes(), team.size(), rank);
    let result = |rank: usize| recv.slice(slice(rank).start, slice(rank).len());
    let block = |rank: usize| send.slice(slice(rank).start, slice(rank).len());
    reduce_scatter::ordered::run_team(call, team, operation, &block, result(team.own_position()))?;
    all_gather::ring::run_team(call, team, &result)
}
