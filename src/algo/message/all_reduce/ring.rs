//! Ring all-reduce, for large vectors: each block is passed around the ring twice. In the first
//! pass the members fold their contributions into the block, and in the second pass they copy the
//! result. Each member sends about two vectors in total, always to the next member. Blocks are cut
//! into segments, so that a member folds one segment while the next segment arrives.

use super::in_place::reduce_in_place;
use crate::algo::fold::Fold;
use crate::algo::message::segmented_ring::{SEGMENT_WINDOW, SegmentedRing};
use crate::algo::message::{MessageOperation, Team};
use crate::algo::pattern::slices::owned_slice;
use crate::algo::row::Algorithm;
use crate::base::buffer::Dst;
use crate::base::error::Result;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllReduce],
    name: "ring",
    description: "messages, blocks pass around the ring twice in segments",
    ordered: false,
    ..Algorithm::message(run)
};

/// Runs the algorithm between all ranks.
///
/// # Errors
/// As [`run_team`].
pub fn run(call: &mut MessageOperation<'_>, team: Team<'_>) -> Result<()> {
    reduce_in_place(call, team, run_team)
}

/// Runs both passes within a team.
///
/// # Errors
/// As [`crate::algo::message::MessageExchange::wait`], and `OutOfMemory`.
pub fn run_team(
    call: &mut MessageOperation<'_>,
    team: Team<'_>,
    fold: Fold,
    data: Dst<'_>,
) -> Result<()> {
    let size = team.size();
    let block = |member: usize| data.range(&owned_slice(data.len(), size, member));
    let ring = SegmentedRing::new(size, &block);
    let mut scratch = call.scratch(SEGMENT_WINDOW * ring.segment_bytes())?;
    ring.run(call, team, 2 * (size - 1), Some((fold, Dst::from(scratch.as_mut_slice()))))?;
    call.return_scratch(scratch);
    Ok(())
}
