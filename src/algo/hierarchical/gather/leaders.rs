//! Everybody stages its block, the leader of each node sends those of its node to the root in one
//! message, and the root, which is the leader of its own, puts them in their places.

use crate::algo::Operation;
use crate::algo::hierarchical::{Levels, at_a_time, with_scratch};
use crate::algo::message::{POSTED, Team};
use crate::algo::pattern::slices::chunks;
use crate::algo::table::{ALWAYS, Algorithm, Body};
use crate::base::buffer::Dst;
use crate::base::error::Result;
use crate::base::ids::Rank;
use crate::kernel;
use crate::transport::OpKind;
use std::ops::Range;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Gather],
    name: "two_level",
    description: "one rank of each node sends the blocks of its node to the root",
    fits: ALWAYS,
    pays: ALWAYS,
    ordered: true,
    body: Body::Hierarchical(run),
};

/// A chunk of each block at a time, which fits the slot of its rank.
///
/// # Errors
/// As [`crate::algo::message::Exchange::wait`].
pub fn run(levels: &mut Levels<'_>, operation: &Operation<'_>) -> Result<()> {
    let root = operation.root()?;
    let ranks = levels.nodes.ranks();
    let most = at_a_time(levels.steps.slot_bytes(), ranks, operation.element());
    if levels.steps.rank() == levels.leader(root) {
        let leaders = levels.leaders(root);
        // Where the blocks of each node begin, for the one who gets them all.
        let is_root = levels.call.rank() == root;
        let spans = if is_root { levels.spans() } else { Vec::new() };
        let blocks = if is_root { ranks } else { levels.steps.size() };
        let room = blocks * most.min(operation.bytes());
        return with_scratch(levels, room, |levels, memory| {
            let mut all = chunks(operation.bytes(), most);
            all.try_for_each(|chunk| lead(levels, operation, (&leaders, &spans), &chunk, memory))
        });
    }
    for chunk in chunks(operation.bytes(), most) {
        let own = levels.steps.next_slot()?.slice(0, chunk.len());
        kernel::copy(own, operation.send.slice(chunk.start, chunk.len()));
        levels.steps.give(&[])?;
    }
    Ok(())
}

/// One chunk, at a leader; `spans` are for the root.
fn lead(
    levels: &mut Levels<'_>,
    operation: &Operation<'_>,
    (leaders, spans): (&[Rank], &[Range<usize>]),
    chunk: &Range<usize>,
    memory: Dst<'_>,
) -> Result<()> {
    let (node, len, root) = (levels.node(), chunk.len(), operation.root()?);
    levels.steps.note()?;
    levels.steps.await_all()?;
    let me = levels.steps.rank();
    let packed = |span: &Range<usize>| memory.slice(span.start * len, span.len() * len);
    let ours = packed(spans.get(node).unwrap_or(&(0..levels.steps.size())));
    for local in 0..levels.steps.size() {
        let from = match local {
            _ if local == me => operation.send.slice(chunk.start, len),
            _ => levels.steps.slot(local).slice(0, len),
        };
        kernel::copy(ours.slice(local * len, len), from);
    }
    levels.steps.checkpoint();
    let team = Team::of(leaders, levels.call.rank())?;
    let nodes = levels.nodes;
    let mut exchange = levels.call.exchange(team);
    if leaders[node] != root {
        exchange.send(nodes.node_of(root), ours.as_src());
        return exchange.finish();
    }
    for other in (0..team.size()).filter(|&other| other != node) {
        exchange.receive(other, packed(&spans[other]));
        exchange.wait_few(POSTED)?;
    }
    exchange.finish()?;
    for (position, rank) in levels.in_node_order().enumerate() {
        let place = operation.recv_block(rank).slice(chunk.start, len);
        kernel::copy(place, memory.as_src().slice(position * len, len));
    }
    Ok(())
}
