//! Linear all-reduce, for few members and small vectors: each member sends its vector to all
//! members, and folds all vectors in the order of the team. This takes one hop.

use super::in_place::run_in_chunks;
use crate::algo::fold::{Fold, copy_contribution};
use crate::algo::message::{MessageOperation, SEGMENT_BYTES, Team};
use crate::algo::row::Algorithm;
use crate::base::buffer::Dst;
use crate::base::error::Result;
use crate::base::ids::WorldSize;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllReduce],
    name: "linear",
    description: "messages between all ranks, each rank reduces all vectors; one hop",
    pays: |bytes, shape| pays(bytes, shape.ranks),
    ..Algorithm::message(run)
};

/// Runs the algorithm between all ranks. It folds all vectors at once, so no partial result is
/// rounded.
///
/// # Errors
/// As [`run_team`].
pub fn run(call: &mut MessageOperation<'_>, team: Team<'_>) -> Result<()> {
    let operation = call.operation;
    copy_contribution(operation, operation.recv, operation.send)?;
    run_team(call, team, Fold::of(operation)?, operation.recv)
}

/// Returns whether the algorithm pays. It takes a single hop, but each rank sends its whole vector
/// to all other ranks.
pub(super) fn pays(bytes: usize, ranks: WorldSize) -> bool {
    bytes <= 4 << 10 && ranks <= 8
}

/// The minimum number of bytes that are exchanged at a time.
const MIN_CHUNK: usize = 4 << 10;

/// Runs the algorithm within a team, with one round per chunk.
///
/// # Errors
/// As [`crate::algo::message::MessageExchange::wait`], and `OutOfMemory`.
pub fn run_team(
    call: &mut MessageOperation<'_>,
    team: Team<'_>,
    fold: Fold,
    data: Dst<'_>,
) -> Result<()> {
    let (size, me) = (team.size(), team.own_position());
    let max_chunk = (SEGMENT_BYTES / size / MIN_CHUNK).max(1) * MIN_CHUNK;
    let scratch_bytes = size * max_chunk.min(data.len());
    run_in_chunks(call, data, max_chunk, scratch_bytes, |call, data, memory| {
        let vector = |member: usize| match member == me {
            true => data,
            false => memory.slice(member * data.len(), data.len()),
        };
        call.exchange(team).exchange_with_all(|_| data.as_src(), vector)?;
        if size > 1 {
            fold.fold_in_order(data, size, |member| vector(member).as_src());
        }
        Ok(())
    })
}
