//! Everybody sends each block to its owner, who folds what comes into its own.

use super::by_and_by;
use crate::algo::Operation;
use crate::algo::fold::Fold;
use crate::algo::message::{Call, POSTED, Team};
use crate::algo::pattern::pairwise;
use crate::algo::table::{ALWAYS, Algorithm, Body};
use crate::base::buffer::{Dst, Src};
use crate::base::error::Result;
use crate::kernel;
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::ReduceScatter, OpKind::ReduceScatterV],
    name: "pairwise",
    description: "messages, everybody sends each block to its owner",
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
        kernel::copy(result, give(team.me()));
        among(call, team, fold, give, result, scratch)
    })
}

/// Everybody sends each block to whom it is for, who folds them in the order in which they come:
/// its own, then those of the members before it. `give` is this member's part of another's block,
/// `own` begins as its part of its own, and `scratch` is twice as long.
///
/// # Errors
/// As [`crate::algo::message::Exchange::wait`].
pub fn among<'d>(
    call: &mut Call<'_>,
    team: Team<'_>,
    fold: Fold,
    give: &dyn Fn(usize) -> Src<'d>,
    own: Dst<'_>,
    scratch: Dst<'_>,
) -> Result<()> {
    let (size, me, len) = (team.size(), team.me(), own.len());
    let landing = |distance: usize| scratch.slice(distance % 2 * len, len);
    let mut exchange = call.exchange(team);
    let mut coming = None;
    for distance in 1..=size {
        let came = coming.take();
        if distance < size {
            exchange.send(pairwise::to(size, me, distance), give(pairwise::to(size, me, distance)));
            let from = pairwise::from(size, me, distance);
            coming = Some(exchange.receive(from, landing(distance)));
        }
        if let Some(came) = came {
            exchange.wait(came)?;
            fold.two(own, own.as_src(), landing(distance - 1).as_src());
        }
        exchange.wait_few(POSTED)?;
    }
    exchange.finish()
}
