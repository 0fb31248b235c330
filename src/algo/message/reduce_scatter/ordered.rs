//! Reduce-scatter in rank order: each rank sends each of its blocks to the owner of the block,
//! which folds the blocks of all ranks at once and in rank order. The result thus does not depend
//! on which ranks share a node. An owner needs scratch memory for one chunk of the block of every
//! rank.

use crate::algo::fold::{Fold, copy_contribution};
use crate::algo::message::{MessageOperation, SEGMENT_BYTES, Team};
use crate::algo::pattern::slices::{bytes_per_block, chunks, clip_to_block};
use crate::algo::row::Algorithm;
use crate::base::buffer::{Dst, Src};
use crate::base::error::Result;
use crate::base::ids::WorldSize;
use crate::base::op::ReduceOp;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::ReduceScatter, OpKind::ReduceScatterV],
    name: "ordered",
    description: "messages, each rank sends each block to its owner, which reduces all at once in rank order",
    ..Algorithm::message(run)
};

/// Runs the algorithm between all ranks.
///
/// # Errors
/// As [`run_team`].
pub fn run(call: &mut MessageOperation<'_>, team: Team<'_>) -> Result<()> {
    let operation = call.operation;
    run_team(call, team, &|rank| operation.send_block(rank), operation.recv)
}

/// Returns the chunk size if a rank keeps one chunk of each of `vectors` vectors at a time. The
/// chunk is a whole number of elements.
pub(in crate::algo::message) fn chunk_per_vector(vectors: WorldSize) -> usize {
    bytes_per_block((4 * SEGMENT_BYTES).max(vectors * 64), vectors)
}

/// Runs the algorithm within a team, which must contain all ranks of the group. `block` returns
/// this rank's block for a member. `result` receives the fold of the blocks of all members for this
/// rank.
///
/// # Errors
/// As [`crate::algo::message::MessageExchange::wait`], and `OutOfMemory`.
pub fn run_team<'d>(
    call: &mut MessageOperation<'_>,
    team: Team<'_>,
    block: &dyn Fn(usize) -> Src<'d>,
    result: Dst<'_>,
) -> Result<()> {
    let operation = call.operation;
    let (size, fold) = (team.size(), Fold::of(operation)?);
    let longest = (0..size).map(|member| block(member).len()).max().unwrap_or(0);
    let max_chunk = chunk_per_vector(size).min(longest);
    // Scaled contributions need scratch memory for all blocks.
    let is_scaled = operation.op()? == ReduceOp::PremulSum;
    let mut scratch = call.scratch(size * max_chunk * if is_scaled { 2 } else { 1 })?;
    let memory = Dst::from(scratch.as_mut_slice());
    for chunk in chunks(longest, max_chunk.max(1)) {
        let part = |member: usize| {
            let block = block(member);
            block.range(&clip_to_block(&chunk, block.len()))
        };
        let scaled = |member: usize| memory.slice((size + member) * max_chunk, part(member).len());
        if is_scaled {
            (0..size).try_for_each(|m| copy_contribution(operation, scaled(m), part(m)))?;
        }
        let outgoing_part =
            |member: usize| if is_scaled { scaled(member).as_src() } else { part(member) };
        let result = result.range(&clip_to_block(&chunk, result.len()));
        run_chunk(call, team, fold, &outgoing_part, result, memory.slice(0, size * max_chunk))?;
    }
    call.return_scratch(scratch);
    Ok(())
}

/// Reduces one chunk of all blocks.
fn run_chunk<'d>(
    call: &mut MessageOperation<'_>,
    team: Team<'_>,
    fold: Fold,
    outgoing_part: &dyn Fn(usize) -> Src<'d>,
    result: Dst<'_>,
    memory: Dst<'_>,
) -> Result<()> {
    let (size, me, len) = (team.size(), team.own_position(), result.len());
    let peer_part = |member: usize| memory.slice(member * len, len);
    call.exchange(team).exchange_with_all(outgoing_part, peer_part)?;
    fold.fold_in_order(result, size, |m| {
        if m == me { outgoing_part(m) } else { peer_part(m).as_src() }
    });
    Ok(())
}
