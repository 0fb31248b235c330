//! Linear all-reduce, for few members and small vectors: each member sends its vector to all
//! members, and folds all vectors in the order of the team. This takes one hop.

use crate::algo::Operation;
use crate::algo::fold::{Fold, copy_contribution};
use crate::algo::message::{MAX_POSTED_STRIPES, MessageOperation, SEGMENT_BYTES, Team};
use crate::algo::pattern::pairwise;
use crate::algo::pattern::slices::chunks;
use crate::algo::table::{ALWAYS, Algorithm, AlgorithmBody};
use crate::base::buffer::Dst;
use crate::base::error::Result;
use crate::base::ids::WorldSize;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllReduce],
    name: "linear",
    description: "messages between all ranks, each rank reduces all vectors; one hop",
    fits: ALWAYS,
    pays: |bytes, shape| pays(bytes, shape.ranks),
    ordered: true,
    body: AlgorithmBody::Message(run),
};

/// Runs the algorithm between all ranks. It folds all vectors at once, so nothing is rounded in
/// between.
///
/// # Errors
/// As [`run_team`].
pub fn run(
    call: &mut MessageOperation<'_>,
    team: Team<'_>,
    operation: &Operation<'_>,
) -> Result<()> {
    copy_contribution(operation, operation.recv, operation.send)?;
    run_team(call, team, Fold::of(operation)?, operation.recv)
}

/// Returns whether the single hop outweighs the data: each rank sends its whole vector to all other
/// ranks.
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
    let max_chunk = (SEGMENT_BYTES / team.size() / MIN_CHUNK).max(1) * MIN_CHUNK;
    let mut scratch = call.scratch(team.size() * max_chunk.min(data.len()))?;
    let memory = Dst::from(scratch.as_mut_slice());
    for chunk in chunks(data.len(), max_chunk) {
        run_chunk(call, team, fold, data.slice(chunk.start, chunk.len()), memory)?;
    }
    call.return_scratch(scratch);
    Ok(())
}

fn run_chunk(
    call: &mut MessageOperation<'_>,
    team: Team<'_>,
    fold: Fold,
    data: Dst<'_>,
    memory: Dst<'_>,
) -> Result<()> {
    let (size, me, len) = (team.size(), team.own_position(), data.len());
    let vector = |member: usize| if member == me { data } else { memory.slice(member * len, len) };
    let mut exchange = call.exchange(team);
    for distance in 1..size {
        let from = pairwise::receive_peer(size, me, distance);
        exchange.receive(from, vector(from));
        exchange.send(pairwise::send_peer(size, me, distance), data.as_src());
        exchange.wait_until_at_most(MAX_POSTED_STRIPES)?;
    }
    exchange.finish()?;
    if size > 1 {
        fold.fold_in_order(data, size, |member| vector(member).as_src());
    }
    Ok(())
}
