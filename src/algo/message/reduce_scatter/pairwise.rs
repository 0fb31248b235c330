//! Pairwise reduce-scatter: each rank sends each of its blocks to the owner of the block, which
//! folds the arriving blocks into its own block.

use super::reduce_in_chunks;
use crate::algo::fold::Fold;
use crate::algo::message::{MAX_POSTED_STRIPES, MessageOperation, Team};
use crate::algo::pattern::pairwise;
use crate::algo::row::Algorithm;
use crate::base::buffer::{Dst, Src};
use crate::base::error::Result;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::ReduceScatter, OpKind::ReduceScatterV],
    name: "pairwise",
    description: "messages, each rank sends each block to its owner",
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
    reduce_in_chunks(call, team, |call, fold, outgoing_part, result, scratch| {
        fold.start(result, outgoing_part(team.own_position()));
        run_team(call, team, fold, outgoing_part, result, scratch)
    })
}

/// Runs the algorithm within a team. Each member folds into its own block the blocks that it
/// receives: first the block of the member before it, then the block of the member before that, and
/// so on.
///
/// `outgoing_part` returns this member's contribution to another member's block. `own` contains
/// this member's contribution to its own block at the start ([`Fold::start`]), and the result at
/// the end. `scratch` is twice as long as `own`.
///
/// # Errors
/// As [`crate::algo::message::MessageExchange::wait`].
pub fn run_team<'d>(
    call: &mut MessageOperation<'_>,
    team: Team<'_>,
    fold: Fold,
    outgoing_part: &dyn Fn(usize) -> Src<'d>,
    own: Dst<'_>,
    scratch: Dst<'_>,
) -> Result<()> {
    let (size, me, len) = (team.size(), team.own_position(), own.len());
    let receive_memory = |distance: usize| scratch.slice(distance % 2 * len, len);
    let mut exchange = call.exchange(team);
    let mut pending_receive = None;
    for distance in 1..=size {
        let received = pending_receive.take();
        if distance < size {
            exchange.send(
                pairwise::send_peer(size, me, distance),
                outgoing_part(pairwise::send_peer(size, me, distance)),
            );
            let from = pairwise::receive_peer(size, me, distance);
            pending_receive = Some(exchange.receive(from, receive_memory(distance)));
        }
        if let Some(incoming) = received {
            exchange.wait(incoming)?;
            fold.fold_next(own, own.as_src(), receive_memory(distance - 1).as_src());
        }
        exchange.wait_until_at_most(MAX_POSTED_STRIPES)?;
    }
    exchange.finish()
}
