//! Reduce-scatter over messages: each member gets its block of the fold of all.

use super::{Call, Team};
use crate::algo::fold::Fold;
use crate::algo::pattern::{pairwise, ring};
use crate::base::buffer::{Dst, Src};
use crate::base::error::Result;

/// Everybody sends each block to whom it is for, who folds them in the order in which they come: its own, then those
/// of the members before it. `give` is this member's part of another's block, `own` begins as its part of its
/// own, and `scratch` is twice as long.
///
/// # Errors
/// As [`super::Exchange::wait`].
pub fn pairwise<'d>(
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

/// How many messages may be posted.
const POSTED: usize = 16;

/// Each block goes round once and ends with its owner; every member sends to its neighbour only. `give` is this
/// member's part of any block, `result` gets its own block of the fold, and `scratch` is three times as long. All
/// blocks have one length.
///
/// # Errors
/// As [`super::Exchange::wait`].
pub fn ring<'d>(
    call: &mut Call<'_>,
    team: Team<'_>,
    fold: Fold,
    give: &dyn Fn(usize) -> Src<'d>,
    result: Dst<'_>,
    scratch: Dst<'_>,
) -> Result<()> {
    let (size, me, len) = (team.size(), team.me(), result.len());
    // Counted so that the block received last is the own one.
    let before = ring::previous(size, me);
    let part = |number: usize| scratch.slice(number % 2 * len, len);
    let theirs = scratch.slice(2 * len, len);
    for step in 0..size - 1 {
        let mut exchange = call.exchange(team);
        let out = if step == 0 { give(before) } else { part(step - 1).as_src() };
        exchange.send(ring::next(size, me), out);
        let came = exchange.receive(before, theirs);
        exchange.wait(came)?;
        let own = give(ring::received(size, before, step));
        let into = if step + 2 == size { result } else { part(step) };
        fold.two(into, theirs.as_src(), own);
        exchange.finish()?;
    }
    Ok(())
}
