//! Code that several all-reduce algorithms over messages share: the contributions, the loop over
//! chunks, and the extra ranks of recursive doubling
//! ([`crate::algo::pattern::doubling`]).

use crate::algo::fold::{Fold, copy_partial_contribution};
use crate::algo::message::{MessageExchange, MessageOperation, Team};
use crate::algo::pattern::doubling::{DoublingRole, role_of};
use crate::algo::pattern::slices::chunks;
use crate::base::buffer::Dst;
use crate::base::error::Result;

/// An all-reduce algorithm within a team.
pub(super) type TeamAllReduce =
    fn(&mut MessageOperation<'_>, Team<'_>, Fold, Dst<'_>) -> Result<()>;

/// Runs an all-reduce between all ranks. `run_team` is an algorithm that folds the vectors step by
/// step.
pub(super) fn reduce_in_place(
    call: &mut MessageOperation<'_>,
    team: Team<'_>,
    run_team: TeamAllReduce,
) -> Result<()> {
    let operation = call.operation;
    copy_partial_contribution(operation, operation.recv, operation.send, team.size())?;
    run_team(call, team, Fold::partial(operation)?, operation.recv)
}

/// Calls `run_chunk` for one chunk of the data at a time, with scratch memory.
pub(super) fn run_in_chunks(
    call: &mut MessageOperation<'_>,
    data: Dst<'_>,
    max_chunk: usize,
    scratch_bytes: usize,
    run_chunk: impl Fn(&mut MessageOperation<'_>, Dst<'_>, Dst<'_>) -> Result<()>,
) -> Result<()> {
    let mut scratch = call.scratch(scratch_bytes)?;
    let memory = Dst::from(scratch.as_mut_slice());
    for chunk in chunks(data.len(), max_chunk) {
        run_chunk(call, data.range(&chunk), memory)?;
    }
    call.return_scratch(scratch);
    Ok(())
}

/// Runs `run` on the workers of recursive doubling, with the worker index. Before that, each extra
/// rank (a member that is not a worker) sends its data to a worker, which folds the data into its
/// own. After that, the worker sends the result to the extra rank.
pub(super) fn run_with_workers<'x>(
    call: &'x mut MessageOperation<'_>,
    team: Team<'x>,
    fold: Fold,
    data: Dst<'x>,
    memory: Dst<'x>,
    run: impl FnOnce(&mut MessageExchange<'x>, usize) -> Result<()>,
) -> Result<()> {
    let me = team.own_position();
    let mut exchange = call.exchange(team);
    let (worker, has_extra) = match role_of(team.size(), me) {
        DoublingRole::Extra => {
            exchange.send(me + 1, data.as_src());
            // `data` is both sent and overwritten. This is safe, because the worker sends the
            // result only after it has received all of `data`.
            exchange.receive(me + 1, data);
            return exchange.finish();
        }
        DoublingRole::Worker { worker_index, has_extra } => (worker_index, has_extra),
    };
    if has_extra {
        let theirs = memory.slice(0, data.len());
        let incoming = exchange.receive(me - 1, theirs);
        exchange.wait(incoming)?;
        fold.fold_two(data, theirs.as_src(), data.as_src());
    }
    run(&mut exchange, worker)?;
    if has_extra {
        exchange.send(me - 1, data.as_src());
    }
    exchange.finish()
}
