//! Everybody sends each block to its owner, who folds those of all ranks at once and in rank order:
//! so the result does not depend on which ranks share a node. An owner needs memory for a part of
//! all ranks' blocks.

use crate::algo::Operation;
use crate::algo::fold::{Fold, contribute};
use crate::algo::message::{Call, POSTED, SEGMENT, Team};
use crate::algo::pattern::pairwise;
use crate::algo::pattern::slices::{chunks, clipped, share};
use crate::algo::table::{ALWAYS, Algorithm, Body};
use crate::base::buffer::{Dst, Src};
use crate::base::error::Result;
use crate::base::ids::WorldSize;
use crate::base::op::ReduceOp;
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::ReduceScatter, OpKind::ReduceScatterV],
    name: "ordered",
    description: "messages, everybody sends each block to its owner, who folds all at once in rank order",
    fits: ALWAYS,
    pays: ALWAYS,
    ordered: true,
    body: Body::Message(run),
};

/// All ranks.
///
/// # Errors
/// As [`among`].
pub fn run(call: &mut Call<'_>, team: Team<'_>, operation: &Operation<'_>) -> Result<()> {
    among(call, team, operation, &|rank| operation.send_block(rank), operation.recv)
}

/// How much of each of so many vectors is kept at a time; whole elements.
pub(in crate::algo::message) fn part_of_each(vectors: WorldSize) -> usize {
    share((4 * SEGMENT).max(vectors * 64), vectors)
}

/// `block` is what this rank has for another; `result` gets the fold of what all have for this one.
/// The team is all ranks.
///
/// # Errors
/// As [`crate::algo::message::Exchange::wait`], and `OutOfMemory`.
pub fn among<'d>(
    call: &mut Call<'_>,
    team: Team<'_>,
    operation: &Operation<'_>,
    block: &dyn Fn(usize) -> Src<'d>,
    result: Dst<'_>,
) -> Result<()> {
    let (size, fold) = (team.size(), Fold::of(operation)?);
    let longest = (0..size).map(|member| block(member).len()).max().unwrap_or(0);
    let most = part_of_each(size).min(longest);
    // What is changed needs room for all blocks.
    let scales = operation.op()? == ReduceOp::PremulSum;
    let mut scratch = call.scratch(size * most * if scales { 2 } else { 1 })?;
    let memory = Dst::from(scratch.as_mut_slice());
    for chunk in chunks(longest, most.max(1)) {
        let part = |member: usize| {
            let block = block(member);
            let part = clipped(&chunk, block.len());
            block.slice(part.start, part.len())
        };
        let scaled = |member: usize| memory.slice((size + member) * most, part(member).len());
        if scales {
            (0..size).try_for_each(|m| contribute(operation, scaled(m), part(m)))?;
        }
        let give = |member: usize| if scales { scaled(member).as_src() } else { part(member) };
        let own = clipped(&chunk, result.len());
        let result = result.slice(own.start, own.len());
        one(call, team, fold, &give, result, memory.slice(0, size * most))?;
    }
    call.keep(scratch);
    Ok(())
}

/// One chunk of all blocks.
fn one<'d>(
    call: &mut Call<'_>,
    team: Team<'_>,
    fold: Fold,
    give: &dyn Fn(usize) -> Src<'d>,
    result: Dst<'_>,
    memory: Dst<'_>,
) -> Result<()> {
    let (size, me, len) = (team.size(), team.me(), result.len());
    let theirs = |member: usize| memory.slice(member * len, len);
    let mut exchange = call.exchange(team);
    for distance in 1..size {
        let (to, from) = (pairwise::to(size, me, distance), pairwise::from(size, me, distance));
        exchange.receive(from, theirs(from));
        exchange.send(to, give(to));
        exchange.wait_few(POSTED)?;
    }
    exchange.finish()?;
    fold.in_order(result, size, |m| if m == me { give(m) } else { theirs(m).as_src() });
    Ok(())
}
