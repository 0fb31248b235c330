//! Recursive doubling: in each round, partners exchange their partial results. The number of hops
//! grows with log2 of the number of ranks, and each member sends the whole vector in each hop.

use super::in_place::{reduce_in_place, run_in_chunks, run_with_workers};
use crate::algo::fold::Fold;
use crate::algo::message::{MessageOperation, SEGMENT_BYTES, Team};
use crate::algo::pattern::doubling::{worker_member, worker_partners};
use crate::algo::row::Algorithm;
use crate::base::buffer::Dst;
use crate::base::error::Result;
use crate::base::ids::WorldSize;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllReduce],
    name: "recursive_doubling",
    description: "messages, recursive doubling of whole vectors",
    pays: |bytes, shape| pays(bytes, shape.ranks),
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

/// Returns whether the algorithm pays. Each doubling of the number of ranks adds one hop, in which
/// each rank sends its whole vector.
pub(super) fn pays(bytes: usize, _ranks: WorldSize) -> bool {
    bytes <= 32 << 10
}

/// Runs all rounds within a team, for each chunk.
///
/// # Errors
/// As [`crate::algo::message::MessageExchange::wait`], and `OutOfMemory`.
pub fn run_team(
    call: &mut MessageOperation<'_>,
    team: Team<'_>,
    fold: Fold,
    data: Dst<'_>,
) -> Result<()> {
    let (size, me, max_chunk) = (team.size(), team.own_position(), SEGMENT_BYTES);
    run_in_chunks(call, data, max_chunk, max_chunk.min(data.len()), |call, data, memory| {
        let theirs = memory.slice(0, data.len());
        run_with_workers(call, team, fold, data, memory, |exchange, worker| {
            for partner in worker_partners(size, worker) {
                let partner = worker_member(size, partner);
                let sent = exchange.send(partner, data.as_src());
                let incoming = exchange.receive(partner, theirs);
                exchange.wait(incoming)?;
                exchange.wait(sent)?;
                let (low, high) = if partner < me { (theirs, data) } else { (data, theirs) };
                fold.fold_two(data, low.as_src(), high.as_src());
            }
            Ok(())
        })
    })
}
