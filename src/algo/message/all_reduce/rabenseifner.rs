//! Rabenseifner's all-reduce has two phases: recursive halving folds one block on each worker, and
//! recursive doubling gathers the blocks. [`crate::algo::pattern::doubling`] explains workers. The
//! number of hops grows with log2 of the number of ranks, and each member sends about two vectors
//! in total.

use super::in_place::{reduce_in_place, run_in_chunks, run_with_workers};
use crate::algo::fold::Fold;
use crate::algo::message::{MessageOperation, Team};
use crate::algo::pattern::doubling::{worker_count, worker_member};
use crate::algo::pattern::halving::rounds;
use crate::algo::pattern::slices::owned_slice;
use crate::algo::row::Algorithm;
use crate::base::buffer::Dst;
use crate::base::error::Result;
use crate::base::ids::WorldSize;
use crate::transport::OpKind;
use std::ops::Range;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllReduce],
    name: "rabenseifner",
    description: "messages, recursive halving and doubling",
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

/// Returns whether the algorithm pays. It takes twice the hops of recursive doubling and sends two
/// vectors in total. A ring takes as many hops as there are ranks.
pub(super) fn pays(bytes: usize, ranks: WorldSize) -> bool {
    bytes <= if ranks >= 32 { 8 << 20 } else { 1 << 20 }
}

/// The number of bytes that are reduced at a time, and the size of the scratch memory.
const MAX_CHUNK: usize = 8 << 20;

/// Runs both phases within a team, for each chunk.
///
/// # Errors
/// As [`crate::algo::message::MessageExchange::wait`], and `OutOfMemory`.
pub fn run_team(
    call: &mut MessageOperation<'_>,
    team: Team<'_>,
    fold: Fold,
    data: Dst<'_>,
) -> Result<()> {
    let (size, me, workers) = (team.size(), team.own_position(), worker_count(team.size()));
    run_in_chunks(call, data, MAX_CHUNK, MAX_CHUNK.min(data.len()), |call, data, memory| {
        run_with_workers(call, team, fold, data, memory, |exchange, worker| {
            let blocks = |range: &Range<usize>| {
                let start = owned_slice(data.len(), workers, range.start).start;
                data.slice(start, owned_slice(data.len(), workers, range.end - 1).end - start)
            };
            let rounds = rounds(workers, worker);
            for round in &rounds {
                let partner = worker_member(size, round.partner);
                let kept_blocks = blocks(&round.kept_blocks);
                let theirs = memory.slice(0, kept_blocks.len());
                exchange.send(partner, blocks(&round.sent_blocks).as_src());
                let incoming = exchange.receive(partner, theirs);
                exchange.wait(incoming)?;
                let (low, high) =
                    if partner < me { (theirs, kept_blocks) } else { (kept_blocks, theirs) };
                fold.fold_two(kept_blocks, low.as_src(), high.as_src());
            }
            for round in rounds.iter().rev() {
                let partner = worker_member(size, round.partner);
                exchange.send(partner, blocks(&round.kept_blocks).as_src());
                // This receive overwrites blocks that this member sent in the first phase. The
                // partner sends their result only after it has received them.
                let incoming = exchange.receive(partner, blocks(&round.sent_blocks));
                exchange.wait(incoming)?;
            }
            Ok(())
        })
    })
}
