//! The root, which is the leader of its node, sends the leader of each other node the blocks of that node in one message;
//! everybody reads its block from its leader.

use crate::algo::Operation;
use crate::algo::hierarchical::{Levels, with_scratch};
use crate::algo::message::Team;
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
    name: "leaders",
    description: "the root sends one rank of each node the blocks of its node, through slots inside",
    fits: ALWAYS,
    pays: ALWAYS,
    ordered: true,
    body: Body::Hierarchical(run),
};

/// A chunk of each block at a time, so that those of all ranks fit a slot.
///
/// # Errors
/// As [`crate::algo::message::Exchange::wait`].
pub fn run(levels: &mut Levels<'_>, operation: &Operation<'_>) -> Result<()> {
    let root = operation.root()?;
    let (leader, most) = (levels.leader(root), levels.chunk(operation.element()));
    if levels.steps.rank() == leader {
        let leaders = levels.leaders(root);
        let room = levels.nodes.ranks() * most;
        return with_scratch(levels, room, |levels, memory| {
            let mut all = chunks(operation.bytes(), most);
            all.try_for_each(|chunk| lead(levels, operation, &leaders, &chunk, memory))
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

/// One chunk, at a leader.
fn lead(
    levels: &mut Levels<'_>,
    operation: &Operation<'_>,
    leaders: &[Rank],
    chunk: &Range<usize>,
    memory: Dst<'_>,
) -> Result<()> {
    let (node, len, root) = (levels.node(), chunk.len(), operation.root()?);
    let ours = levels.packed(memory, node, len);
    let team = Team::of(leaders, levels.call.rank())?;
    let nodes = levels.nodes;
    let blocks: Vec<Dst<'_>> =
        (0..team.size()).map(|node| levels.packed(memory, node, len)).collect();
    if leaders[node] == root {
        for (position, rank) in levels.in_node_order().enumerate() {
            let from = operation.send_block(rank).slice(chunk.start, len);
            kernel::copy(memory.slice(position * len, len), from);
        }
    }
    let mut exchange = levels.call.exchange(team);
    if leaders[node] == root {
        for other in (0..team.size()).filter(|&other| other != node) {
            exchange.send(other, blocks[other].as_src());
        }
    } else {
        exchange.receive(nodes.node_of(root), ours);
    }
    exchange.finish()?;
    let slot = levels.steps.next_slot()?.slice(0, ours.len());
    kernel::copy(slot, ours.as_src());
    levels.steps.give(&[])?;
    let own = ours.as_src().slice(levels.steps.rank() * len, len);
    kernel::copy(operation.recv.slice(chunk.start, len), own);
    Ok(())
}
