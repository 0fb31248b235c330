//! Reduce by reduce-scatter and gather: each rank folds a slice, and the root gathers the slices.
//! The root receives about two vectors, whatever the number of ranks, and all ranks fold at the
//! same time.
//!
//! A rank folds a slice vector by vector as the vectors arrive. For narrow floats, it folds all
//! vectors at once, since one rounding per rank would lose too much precision.

use crate::algo::Operation;
use crate::algo::fold::{
    Fold, copy_partial_contribution, finish_average, is_partial_contribution_scaled,
    is_rounded_between_folds,
};
use crate::algo::message::{MAX_POSTED_STRIPES, MessageOperation, Team, reduce_scatter};
use crate::algo::pattern::pairwise;
use crate::algo::pattern::slices::{chunks, owned_slice};
use crate::algo::select::GroupShape;
use crate::algo::table::{ALWAYS, Algorithm, AlgorithmBody};
use crate::base::buffer::{Dst, Src};
use crate::base::error::Result;
use crate::kernel;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Reduce],
    name: "reduce_scatter_gather",
    description: "messages, each rank reduces a slice, the root gathers the slices",
    fits: ALWAYS,
    pays,
    ordered: false,
    body: AlgorithmBody::Message(run),
};

/// The number of bytes that are reduced at a time. The scratch memory is at most about twice as
/// large.
const MAX_CHUNK: usize = 4 << 20;

/// Returns whether the algorithm pays. The root receives two vectors, in more messages; in a tree,
/// it receives one vector for each doubling of the ranks.
fn pays(bytes: usize, shape: &GroupShape) -> bool {
    shape.ranks > 4 && bytes > shape.ranks.saturating_mul(16 << 10)
}

/// Runs the algorithm between all ranks.
///
/// # Errors
/// As [`crate::algo::message::MessageExchange::wait`], and `OutOfMemory`.
pub fn run(
    call: &mut MessageOperation<'_>,
    team: Team<'_>,
    operation: &Operation<'_>,
) -> Result<()> {
    if is_rounded_between_folds(operation.dtype()) {
        return run_in_rank_order(call, team, operation);
    }
    let (size, me, bytes) = (team.size(), team.own_position(), operation.bytes());
    let longest = (0..size)
        .map(|rank| owned_slice(MAX_CHUNK.min(bytes), size, rank).len())
        .max()
        .unwrap_or(0);
    let is_scaled = is_partial_contribution_scaled(operation)?;
    let scaled_bytes = if is_scaled { MAX_CHUNK.min(bytes) } else { 0 };
    let mut scratch = call.scratch(3 * longest + scaled_bytes)?;
    let memory = Dst::from(scratch.as_mut_slice());
    let (own, receive_memory) = (memory.slice(0, longest), memory.slice(longest, 2 * longest));
    for chunk in chunks(bytes, MAX_CHUNK) {
        let mut part = operation.send.slice(chunk.start, chunk.len());
        if is_scaled {
            let scaled = memory.slice(3 * longest, chunk.len());
            copy_partial_contribution(operation, scaled, part, size)?;
            part = scaled.as_src();
        }
        let own = own.slice(0, owned_slice(chunk.len(), size, me).len());
        let result =
            (me == operation.root()?).then(|| operation.recv.slice(chunk.start, chunk.len()));
        run_chunk(call, team, operation, part, own, receive_memory, result)?;
    }
    call.return_scratch(scratch);
    finish_average(operation, operation.recv, size)
}

/// Folds all vectors of a slice at once, including averages and factors.
fn run_in_rank_order(
    call: &mut MessageOperation<'_>,
    team: Team<'_>,
    operation: &Operation<'_>,
) -> Result<()> {
    let (size, me, bytes) = (team.size(), team.own_position(), operation.bytes());
    let longest = (0..size)
        .map(|rank| owned_slice(MAX_CHUNK.min(bytes), size, rank).len())
        .max()
        .unwrap_or(0);
    let mut scratch = call.scratch(longest)?;
    let memory = Dst::from(scratch.as_mut_slice());
    for chunk in chunks(bytes, MAX_CHUNK) {
        let part = operation.send.slice(chunk.start, chunk.len());
        let slice = |rank: usize| owned_slice(part.len(), size, rank);
        let outgoing_slice = |rank: usize| part.slice(slice(rank).start, slice(rank).len());
        let own = memory.slice(0, slice(me).len());
        reduce_scatter::ordered::run_team(call, team, operation, &outgoing_slice, own)?;
        let result =
            (me == operation.root()?).then(|| operation.recv.slice(chunk.start, chunk.len()));
        gather_slices(call, team, operation, own, result)?;
    }
    call.return_scratch(scratch);
    Ok(())
}

/// Reduces one chunk. `result` is the root's destination.
fn run_chunk(
    call: &mut MessageOperation<'_>,
    team: Team<'_>,
    operation: &Operation<'_>,
    part: Src<'_>,
    own: Dst<'_>,
    receive_memory: Dst<'_>,
    result: Option<Dst<'_>>,
) -> Result<()> {
    let slice = |rank: usize| owned_slice(part.len(), team.size(), rank);
    let outgoing_slice = |rank: usize| part.slice(slice(rank).start, slice(rank).len());
    kernel::copy(own, outgoing_slice(team.own_position()));
    reduce_scatter::pairwise::run_team(
        call,
        team,
        Fold::partial(operation)?,
        &outgoing_slice,
        own,
        receive_memory,
    )?;
    gather_slices(call, team, operation, own, result)
}

/// Gathers the slices of one chunk on the root.
fn gather_slices(
    call: &mut MessageOperation<'_>,
    team: Team<'_>,
    operation: &Operation<'_>,
    own: Dst<'_>,
    result: Option<Dst<'_>>,
) -> Result<()> {
    let (size, me, root) = (team.size(), team.own_position(), operation.root()?);
    let mut exchange = call.exchange(team);
    let Some(result) = result else {
        exchange.send(root, own.as_src());
        return exchange.finish();
    };
    let slice = |rank: usize| owned_slice(result.len(), size, rank);
    let result_slice = |rank: usize| result.slice(slice(rank).start, slice(rank).len());
    kernel::copy(result_slice(me), own.as_src());
    for distance in 1..size {
        let from = pairwise::send_peer(size, me, distance);
        exchange.receive(from, result_slice(from));
        exchange.wait_until_at_most(MAX_POSTED_STRIPES)?;
    }
    exchange.finish()
}
