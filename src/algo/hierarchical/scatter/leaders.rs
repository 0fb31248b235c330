//! The root, which is the leader of its node, sends the leader of each other node the blocks of
//! that node in one message; everybody reads its block from its leader.

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
    kinds: &[OpKind::Scatter],
    name: "two_level",
    description: "the root sends one rank of each node the blocks of its node, through slots inside",
    fits: ALWAYS,
    pays: ALWAYS,
    ordered: true,
    body: Body::Hierarchical(run),
};

/// A chunk of each block at a time, so that those of a node fit the slot of its leader.
///
/// # Errors
/// As [`crate::algo::message::Exchange::wait`].
pub fn run(levels: &mut Levels<'_>, operation: &Operation<'_>) -> Result<()> {
    let root = operation.root()?;
    let (leader, ranks) = (levels.leader(root), levels.nodes.ranks());
    let room = levels.steps.slot_bytes() / levels.nodes.largest();
    let most = at_a_time(room, ranks, operation.element());
    if levels.steps.rank() == leader {
        let leaders = levels.leaders(root);
        // Where the blocks of each node begin, for the one who has them all.
        let is_root = levels.call.rank() == root;
        let spans = if is_root { levels.spans() } else { Vec::new() };
        let blocks = if is_root { ranks } else { levels.steps.size() };
        let room = blocks * most.min(operation.bytes());
        return with_scratch(levels, room, |levels, memory| {
            let mut all = chunks(operation.bytes(), most);
            all.try_for_each(|chunk| lead(levels, operation, (&leaders, &spans), &chunk, memory))
        });
    }
    let me = levels.steps.rank();
    for chunk in chunks(operation.bytes(), most) {
        let len = chunk.len();
        levels.steps.note()?;
        levels.steps.await_rank(leader)?;
        let from = levels.steps.slot(leader).slice(me * len, len);
        kernel::copy(operation.recv.slice(chunk.start, len), from);
        levels.steps.checkpoint();
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
    let packed = |span: &Range<usize>| memory.slice(span.start * len, span.len() * len);
    let ours = packed(spans.get(node).unwrap_or(&(0..levels.steps.size())));
    let team = Team::of(leaders, levels.call.rank())?;
    let nodes = levels.nodes;
    if leaders[node] == root {
        for (position, rank) in levels.in_node_order().enumerate() {
            let from = operation.send_block(rank).slice(chunk.start, len);
            kernel::copy(memory.slice(position * len, len), from);
        }
    }
    let mut exchange = levels.call.exchange(team);
    if leaders[node] == root {
        for other in (0..team.size()).filter(|&other| other != node) {
            exchange.send(other, packed(&spans[other]).as_src());
            exchange.wait_few(POSTED)?;
        }
    } else {
        exchange.receive(nodes.node_of(root), ours);
    }
    exchange.finish()?;
    let slot = levels.steps.next_slot()?.slice(0, ours.len());
    kernel::stage(slot, ours.as_src());
    levels.steps.give(&[])?;
    let own = ours.as_src().slice(levels.steps.rank() * len, len);
    kernel::copy(operation.recv.slice(chunk.start, len), own);
    Ok(())
}
