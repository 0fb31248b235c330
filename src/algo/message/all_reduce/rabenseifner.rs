//! Rabenseifner's all-reduce: recursive halving folds one block on each worker, recursive doubling
//! gathers the blocks. The number of hops grows with log2 of the number of ranks, and each member
//! sends about two vectors in total.

use crate::algo::Operation;
use crate::algo::fold::Fold;
use crate::algo::message::{MessageOperation, Team};
use crate::algo::pattern::doubling::{DoublingRole, role_of, worker_count, worker_member};
use crate::algo::pattern::halving::rounds;
use crate::algo::pattern::slices::{chunks, owned_slice};
use crate::algo::table::{ALWAYS, Algorithm, AlgorithmBody};
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
    fits: ALWAYS,
    pays: |bytes, shape| pays(bytes, shape.ranks),
    ordered: false,
    body: AlgorithmBody::Message(run),
};

/// Runs the algorithm between all ranks.
///
/// # Errors
/// As [`run_team`].
pub fn run(
    call: &mut MessageOperation<'_>,
    team: Team<'_>,
    operation: &Operation<'_>,
) -> Result<()> {
    super::reduce_in_place(call, team, operation, run_team)
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
    let mut scratch = call.scratch(MAX_CHUNK.min(data.len()))?;
    let memory = Dst::from(scratch.as_mut_slice());
    for chunk in chunks(data.len(), MAX_CHUNK) {
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
    let (size, me, workers) = (team.size(), team.own_position(), worker_count(team.size()));
    let mut exchange = call.exchange(team);
    let (worker_index, has_extra) = match role_of(size, me) {
        DoublingRole::Extra => {
            exchange.send(me + 1, data.as_src());
            // The result arrives only after the worker has received all of `data`.
            exchange.receive(me + 1, data);
            return exchange.finish();
        }
        DoublingRole::Worker { worker_index: number, has_extra: takes } => (number, takes),
    };
    if has_extra {
        let theirs = memory.slice(0, data.len());
        let given = exchange.receive(me - 1, theirs);
        exchange.wait(given)?;
        fold.fold_two(data, theirs.as_src(), data.as_src());
    }
    let blocks = |range: &Range<usize>| {
        let start = owned_slice(data.len(), workers, range.start).start;
        data.slice(start, owned_slice(data.len(), workers, range.end - 1).end - start)
    };
    let rounds = rounds(workers, worker_index);
    for round in &rounds {
        let partner = worker_member(size, round.partner);
        let kept_blocks = blocks(&round.kept_blocks);
        let theirs = memory.slice(0, kept_blocks.len());
        exchange.send(partner, blocks(&round.sent_blocks).as_src());
        let incoming = exchange.receive(partner, theirs);
        exchange.wait(incoming)?;
        let (low, high) = if partner < me { (theirs, kept_blocks) } else { (kept_blocks, theirs) };
        fold.fold_two(kept_blocks, low.as_src(), high.as_src());
    }
    for round in rounds.iter().rev() {
        let partner = worker_member(size, round.partner);
        exchange.send(partner, blocks(&round.kept_blocks).as_src());
        // The partner sends these blocks after it has received this member's part of them in the
        // first phase.
        let incoming = exchange.receive(partner, blocks(&round.sent_blocks));
        exchange.wait(incoming)?;
    }
    if has_extra {
        exchange.send(me - 1, data.as_src());
    }
    exchange.finish()
}
