//! Whole operations by messages alone: what the algorithms of a team do for all ranks of a group.

use super::{
    Call, SEGMENT, Team, all_gather, all_reduce, barrier, broadcast, reduce, reduce_scatter,
};
use crate::algo::Operation;
use crate::algo::fold::{Fold, changes_parts, contribute, contribute_part, finish};
use crate::algo::pattern::slices::chunks;
use crate::algo::pattern::tree;
use crate::base::buffer::{Dst, Src};
use crate::base::error::Result;
use crate::kernel;

/// One message each way between all ranks.
///
/// # Errors
/// As [`super::Exchange::wait`], here and below.
pub fn direct(call: &mut Call<'_>, team: Team<'_>, operation: &Operation<'_>) -> Result<()> {
    // All vectors at once, so that nothing is rounded in between.
    contribute(operation, operation.recv, operation.send)?;
    all_reduce::direct(call, team, Fold::of(operation)?, operation.recv)
}

/// Recursive doubling.
///
/// # Errors
/// As [`direct`].
pub fn doubling(call: &mut Call<'_>, team: Team<'_>, operation: &Operation<'_>) -> Result<()> {
    all_reduce(call, team, operation, all_reduce::doubling)
}

/// Recursive halving and doubling.
///
/// # Errors
/// As [`direct`].
pub fn rabenseifner(call: &mut Call<'_>, team: Team<'_>, operation: &Operation<'_>) -> Result<()> {
    all_reduce(call, team, operation, all_reduce::rabenseifner)
}

/// The ring.
///
/// # Errors
/// As [`direct`].
pub fn ring(call: &mut Call<'_>, team: Team<'_>, operation: &Operation<'_>) -> Result<()> {
    all_reduce(call, team, operation, all_reduce::ring)
}

fn all_reduce(
    call: &mut Call<'_>,
    team: Team<'_>,
    operation: &Operation<'_>,
    algorithm: all_reduce::Algorithm,
) -> Result<()> {
    contribute_part(operation, operation.recv, operation.send, team.size())?;
    algorithm(call, team, Fold::partial(operation)?, operation.recv)?;
    finish(operation, operation.recv, team.size())
}

/// Reduce up a binomial tree.
///
/// # Errors
/// As [`direct`].
pub fn reduce(call: &mut Call<'_>, team: Team<'_>, operation: &Operation<'_>) -> Result<()> {
    let (root, fold) = (operation.root()?, Fold::partial(operation)?);
    let place = tree::binomial(team.size(), root, team.me());
    let most = SEGMENT.min(operation.bytes());
    let mut scratch = call.scratch(2 * most)?;
    let memory = Dst::from(scratch.as_mut_slice());
    for chunk in chunks(operation.bytes(), SEGMENT) {
        let (start, len) = (chunk.start, chunk.len());
        let part = match place.parent {
            None => operation.recv.slice(start, len),
            Some(_) => memory.slice(most, len),
        };
        contribute_part(operation, part, operation.send.slice(start, len), team.size())?;
        reduce::up(call, team, &place, fold, part, memory.slice(0, len))?;
    }
    call.keep(scratch);
    finish(operation, operation.recv, team.size())
}

/// Broadcast down a binomial tree.
///
/// # Errors
/// As [`direct`].
pub fn broadcast_tree(
    call: &mut Call<'_>,
    team: Team<'_>,
    operation: &Operation<'_>,
) -> Result<()> {
    let place = tree::binomial(team.size(), operation.root()?, team.me());
    broadcast::down(call, team, &place, operation.send, operation.recv)
}

/// Broadcast along a chain.
///
/// # Errors
/// As [`direct`].
pub fn broadcast_chain(
    call: &mut Call<'_>,
    team: Team<'_>,
    operation: &Operation<'_>,
) -> Result<()> {
    let place = tree::chain(team.size(), operation.root()?, team.me());
    broadcast::down(call, team, &place, operation.send, operation.recv)
}

/// Bruck's all-gather.
///
/// # Errors
/// As [`direct`].
pub fn bruck(call: &mut Call<'_>, team: Team<'_>, operation: &Operation<'_>) -> Result<()> {
    all_gather::bruck(call, team, operation.send, operation.recv)
}

/// All-gather in a ring.
///
/// # Errors
/// As [`direct`].
pub fn all_gather_ring(
    call: &mut Call<'_>,
    team: Team<'_>,
    operation: &Operation<'_>,
) -> Result<()> {
    let bytes = operation.bytes();
    let block = |rank: usize| operation.recv.slice(rank * bytes, bytes);
    kernel::copy(block(team.me()), operation.send);
    all_gather::ring(call, team, &block)
}

/// Reduce-scatter by pairwise exchange.
///
/// # Errors
/// As [`direct`].
pub fn pairwise(call: &mut Call<'_>, team: Team<'_>, operation: &Operation<'_>) -> Result<()> {
    scatter(call, team, operation, |call, fold, give, result, scratch| {
        kernel::copy(result, give(team.me()));
        reduce_scatter::pairwise(call, team, fold, give, result, scratch)
    })
}

/// Reduce-scatter in a ring.
///
/// # Errors
/// As [`direct`].
pub fn reduce_scatter_ring(
    call: &mut Call<'_>,
    team: Team<'_>,
    operation: &Operation<'_>,
) -> Result<()> {
    scatter(call, team, operation, |call, fold, give, result, scratch| {
        reduce_scatter::ring(call, team, fold, give, result, scratch)
    })
}

/// Works through the blocks a chunk of each at a time; `one` is given this rank's part of every block's chunk, where
/// the result goes, and scratch memory for three chunks.
fn scatter(
    call: &mut Call<'_>,
    team: Team<'_>,
    operation: &Operation<'_>,
    one: impl for<'d> Fn(&mut Call<'_>, Fold, &dyn Fn(usize) -> Src<'d>, Dst<'d>, Dst<'d>) -> Result<()>,
) -> Result<()> {
    let (size, bytes, fold) = (team.size(), operation.bytes(), Fold::partial(operation)?);
    // What is changed needs room for all blocks.
    let scales = changes_parts(operation)?;
    let most = if scales { (4 * SEGMENT / size).next_multiple_of(64) } else { SEGMENT };
    let scaled = if scales { size * most.min(bytes) } else { 0 };
    let mut scratch = call.scratch(3 * most.min(bytes) + scaled)?;
    let memory = Dst::from(scratch.as_mut_slice());
    let (scaled, memory) = (memory.slice(0, scaled), memory.slice(scaled, memory.len() - scaled));
    for chunk in chunks(bytes, most) {
        let (start, len) = (chunk.start, chunk.len());
        let part = |rank: usize| operation.send.slice(rank * bytes + start, len);
        if scales {
            for rank in 0..size {
                contribute_part(operation, scaled.slice(rank * len, len), part(rank), size)?;
            }
        }
        let give = |rank: usize| {
            if scales { scaled.as_src().slice(rank * len, len) } else { part(rank) }
        };
        one(call, fold, &give, operation.recv.slice(start, len), memory)?;
    }
    call.keep(scratch);
    finish(operation, operation.recv, size)
}

/// The dissemination barrier.
///
/// # Errors
/// As [`direct`].
pub fn dissemination(call: &mut Call<'_>, team: Team<'_>, _: &Operation<'_>) -> Result<()> {
    barrier::dissemination(call, team)
}
