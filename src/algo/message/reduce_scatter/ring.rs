//! Ring reduce-scatter: each block is passed around the ring once, and each member folds its
//! contribution into it. The owner of the block is the last member that receives it. Each member
//! sends only to the next member.

use super::reduce_in_chunks;
use crate::algo::fold::Fold;
use crate::algo::message::{MessageOperation, Team};
use crate::algo::pattern::ring;
use crate::algo::row::Algorithm;
use crate::base::buffer::{Dst, Src};
use crate::base::error::Result;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::ReduceScatter, OpKind::ReduceScatterV],
    name: "ring",
    description: "messages, each block passes around the ring to its owner",
    // If ranks share a node, the result must be rounded only once per node. This algorithm rounds
    // once per rank.
    pays: |_, shape| shape.max_ranks_per_node == 1,
    ordered: false,
    ..Algorithm::message(run)
};

/// Runs the algorithm between all ranks.
///
/// # Errors
/// As [`run_team`].
pub fn run(call: &mut MessageOperation<'_>, team: Team<'_>) -> Result<()> {
    reduce_in_chunks(call, team, |call, fold, own_part, result, scratch| {
        run_team(call, team, fold, own_part, result, scratch)
    })
}

/// Runs the algorithm within a team. `own_part` returns this member's contribution to any block,
/// `result` receives this member's block of the fold, and `scratch` is three times as long as the
/// longest block. Blocks may have different lengths, which all members know.
///
/// # Errors
/// As [`crate::algo::message::MessageExchange::wait`].
pub fn run_team<'d>(
    call: &mut MessageOperation<'_>,
    team: Team<'_>,
    fold: Fold,
    own_part: &dyn Fn(usize) -> Src<'d>,
    result: Dst<'_>,
    scratch: Dst<'_>,
) -> Result<()> {
    let (size, me, third) = (team.size(), team.own_position(), scratch.len() / 3);
    // The ring arithmetic for the previous member gives the blocks in the order in which this
    // member receives its own block last.
    let previous_member = ring::previous_member(size, me);
    let mut outgoing = own_part(previous_member);
    for step in 0..size - 1 {
        let own = own_part(ring::received_block(size, previous_member, step));
        let theirs = scratch.slice(2 * third, own.len());
        let mut exchange = call.exchange(team);
        exchange.send(ring::next_member(size, me), outgoing);
        let incoming = exchange.receive(previous_member, theirs);
        exchange.wait(incoming)?;
        let part = scratch.slice(step % 2 * third, own.len());
        let into = if step + 2 == size { result } else { part };
        // The first block that arrives is the contribution of the previous member, later blocks are
        // partial results.
        if step == 0 {
            fold.fold_two(into, theirs.as_src(), own);
        } else {
            fold.fold_next(into, theirs.as_src(), own);
        }
        exchange.finish()?;
        outgoing = part.as_src();
    }
    Ok(())
}
