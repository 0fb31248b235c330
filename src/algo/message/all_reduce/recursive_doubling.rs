//! Recursive doubling: in each round, partners exchange their partial results. The number of hops
//! grows with log2 of the number of ranks, and each member sends the whole vector in each hop.

use crate::algo::Operation;
use crate::algo::fold::Fold;
use crate::algo::message::{MessageOperation, SEGMENT_BYTES, Team};
use crate::algo::pattern::doubling::{DoublingRole, role_of, worker_member, worker_partners};
use crate::algo::pattern::slices::chunks;
use crate::algo::table::{ALWAYS, Algorithm, AlgorithmBody};
use crate::base::buffer::Dst;
use crate::base::error::Result;
use crate::base::ids::WorldSize;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllReduce],
    name: "recursive_doubling",
    description: "messages, recursive doubling of whole vectors",
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

/// Returns whether the algorithm pays. Each doubling of the ranks adds one hop, which sends the
/// whole vector.
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
    let mut scratch = call.scratch(SEGMENT_BYTES.min(data.len()))?;
    let memory = Dst::from(scratch.as_mut_slice());
    for chunk in chunks(data.len(), SEGMENT_BYTES) {
        let (data, theirs) = (data.slice(chunk.start, chunk.len()), memory.slice(0, chunk.len()));
        run_chunk(call, team, fold, data, theirs)?;
    }
    call.return_scratch(scratch);
    Ok(())
}

fn run_chunk(
    call: &mut MessageOperation<'_>,
    team: Team<'_>,
    fold: Fold,
    data: Dst<'_>,
    theirs: Dst<'_>,
) -> Result<()> {
    let (size, me) = (team.size(), team.own_position());
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
        let given = exchange.receive(me - 1, theirs);
        exchange.wait(given)?;
        fold.fold_two(data, theirs.as_src(), data.as_src());
    }
    for partner in worker_partners(size, worker_index) {
        let partner = worker_member(size, partner);
        let sent = exchange.send(partner, data.as_src());
        let incoming = exchange.receive(partner, theirs);
        exchange.wait(incoming)?;
        exchange.wait(sent)?;
        let (low, high) = if partner < me { (theirs, data) } else { (data, theirs) };
        fold.fold_two(data, low.as_src(), high.as_src());
    }
    if has_extra {
        exchange.send(me - 1, data.as_src());
    }
    exchange.finish()
}
