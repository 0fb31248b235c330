//! Ring all-gather: the blocks are passed around the ring. Each member sends only to the next
//! member, and receives each block once.

use crate::algo::message::segmented_ring::SegmentedRing;
use crate::algo::message::{MessageOperation, Team};
use crate::algo::row::Algorithm;
use crate::base::buffer::Dst;
use crate::base::error::Result;
use crate::kernel;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllGather, OpKind::AllGatherV],
    name: "ring",
    description: "messages, blocks pass around the ring",
    ..Algorithm::message(run)
};

/// Runs the algorithm between all ranks.
///
/// # Errors
/// As [`run_team`].
pub fn run(call: &mut MessageOperation<'_>, team: Team<'_>) -> Result<()> {
    let operation = call.operation;
    let block = |rank: usize| operation.recv_block(rank);
    kernel::copy(block(team.own_position()), operation.send);
    run_team(call, team, &block)
}

/// Runs the algorithm within a team. `block` returns the destination of a member's block; this
/// member's own block must already be there. The blocks may have different lengths, which all
/// members know.
///
/// # Errors
/// As [`crate::algo::message::MessageExchange::wait`].
pub fn run_team<'d>(
    call: &mut MessageOperation<'_>,
    team: Team<'_>,
    block: &dyn Fn(usize) -> Dst<'d>,
) -> Result<()> {
    SegmentedRing::new(team.size(), block).run(call, team, team.size() - 1, None)
}
