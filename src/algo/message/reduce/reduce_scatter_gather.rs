//! Reduce by reduce-scatter and gather: each rank folds a slice, and the root gathers the slices.
//! The root receives about two vectors, whatever the number of ranks, and all ranks fold at the
//! same time.
//!
//! A rank usually folds the slices of the other ranks one by one as they arrive. For narrow floats,
//! it folds all of them at once, because one rounding per rank would lose too much precision.

use crate::algo::fold::{
    Fold, copy_contribution, is_contribution_unscaled, is_rounded_between_folds,
};
use crate::algo::message::{MessageOperation, Team, reduce_scatter};
use crate::algo::pattern::slices::{chunks, longest_slice, owned_slice};
use crate::algo::row::{Algorithm, GroupShape};
use crate::base::buffer::Dst;
use crate::base::error::Result;
use crate::kernel;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Reduce],
    name: "reduce_scatter_gather",
    description: "messages, each rank reduces a slice, the root gathers the slices",
    pays,
    ordered: false,
    ..Algorithm::message(run)
};

/// The number of bytes that are reduced at a time. The scratch memory has at most about twice this
/// size.
const MAX_CHUNK: usize = 4 << 20;

/// Returns whether the algorithm is faster than the binomial tree. In this algorithm, the root
/// receives about two vectors, but in more messages. In the tree, the root receives one vector for
/// each doubling of the number of ranks.
fn pays(bytes: usize, shape: &GroupShape) -> bool {
    shape.ranks > 4 && bytes > shape.ranks.saturating_mul(16 << 10)
}

/// Runs the algorithm between all ranks.
///
/// # Errors
/// As [`crate::algo::message::MessageExchange::wait`], and `OutOfMemory`.
pub fn run(call: &mut MessageOperation<'_>, team: Team<'_>) -> Result<()> {
    let operation = call.operation;
    let (size, me, bytes) = (team.size(), team.own_position(), operation.bytes());
    let is_folded_at_once = is_rounded_between_folds(operation.dtype());
    let max_chunk = MAX_CHUNK.min(bytes);
    let longest = longest_slice(max_chunk, size);
    let receive_bytes = if is_folded_at_once { 0 } else { 2 * longest };
    let is_scaled = !is_folded_at_once && !is_contribution_unscaled(operation)?;
    let scaled_bytes = if is_scaled { max_chunk } else { 0 };
    let mut scratch = call.scratch(longest + receive_bytes + scaled_bytes)?;
    let memory = Dst::from(scratch.as_mut_slice());
    for chunk in chunks(bytes, MAX_CHUNK) {
        let mut part = operation.send.range(&chunk);
        if is_scaled {
            let scaled = memory.slice(3 * longest, chunk.len());
            copy_contribution(operation, scaled, part)?;
            part = scaled.as_src();
        }
        let outgoing_slice = |rank| part.range(&owned_slice(part.len(), size, rank));
        let own = memory.slice(0, outgoing_slice(me).len());
        if is_folded_at_once {
            reduce_scatter::ordered::run_team(call, team, &outgoing_slice, own)?;
        } else {
            let receive_memory = memory.slice(longest, receive_bytes);
            let fold = Fold::contributions(operation, size)?;
            fold.start(own, outgoing_slice(me));
            reduce_scatter::pairwise::run_team(
                call,
                team,
                fold,
                &outgoing_slice,
                own,
                receive_memory,
            )?;
        }
        let result = (me == operation.root()?).then(|| operation.recv.range(&chunk));
        gather_slices(call, team, own, result)?;
    }
    call.return_scratch(scratch);
    Ok(())
}

/// Gathers the slices of one chunk on the root.
fn gather_slices(
    call: &mut MessageOperation<'_>,
    team: Team<'_>,
    own: Dst<'_>,
    result: Option<Dst<'_>>,
) -> Result<()> {
    let (size, me, root) = (team.size(), team.own_position(), call.operation.root()?);
    let mut exchange = call.exchange(team);
    let Some(result) = result else {
        exchange.send(root, own.as_src());
        return exchange.finish();
    };
    let result_slice = |rank| result.range(&owned_slice(result.len(), size, rank));
    kernel::copy(result_slice(me), own.as_src());
    exchange.receive_from_all(result_slice)
}
