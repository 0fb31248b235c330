//! Each block goes round once and ends with its owner; everybody sends to its neighbour only.

use super::by_and_by;
use crate::algo::Operation;
use crate::algo::fold::Fold;
use crate::algo::message::{Call, Team};
use crate::algo::pattern::ring;
use crate::algo::table::{ALWAYS, Algorithm, Body};
use crate::base::buffer::{Dst, Src};
use crate::base::error::Result;
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::ReduceScatter, OpKind::ReduceScatterV],
    name: "ring",
    description: "messages, each block goes round to its owner",
    fits: ALWAYS,
    // Where ranks share a node, a fold is rounded once for each node, and not for each rank.
    pays: |_, shape| shape.largest == 1,
    ordered: false,
    body: Body::Message(run),
};

/// All ranks.
///
/// # Errors
/// As [`among`].
pub fn run(call: &mut Call<'_>, team: Team<'_>, operation: &Operation<'_>) -> Result<()> {
    by_and_by(call, team, operation, |call, fold, give, result, scratch| {
        among(call, team, fold, give, result, scratch)
    })
}

/// `give` is this member's part of any block, `result` gets its own block of the fold, and
/// `scratch` is three times as long as the longest. Blocks may have different lengths, that all
/// members know.
///
/// # Errors
/// As [`crate::algo::message::Exchange::wait`].
pub fn among<'d>(
    call: &mut Call<'_>,
    team: Team<'_>,
    fold: Fold,
    give: &dyn Fn(usize) -> Src<'d>,
    result: Dst<'_>,
    scratch: Dst<'_>,
) -> Result<()> {
    let (size, me, third) = (team.size(), team.me(), scratch.len() / 3);
    // Counted so that the block received last is the own one.
    let before = ring::previous(size, me);
    let mut out = give(before);
    for step in 0..size - 1 {
        let own = give(ring::received(size, before, step));
        let theirs = scratch.slice(2 * third, own.len());
        let mut exchange = call.exchange(team);
        exchange.send(ring::next(size, me), out);
        let came = exchange.receive(before, theirs);
        exchange.wait(came)?;
        let part = scratch.slice(step % 2 * third, own.len());
        let into = if step + 2 == size { result } else { part };
        fold.two(into, theirs.as_src(), own);
        exchange.finish()?;
        out = part.as_src();
    }
    Ok(())
}
