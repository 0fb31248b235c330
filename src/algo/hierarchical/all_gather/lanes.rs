//! All-gather between nodes, in lanes: the keeper of each collects its slice of the blocks of its
//! node, and sends them round the other nodes.

use crate::algo::Operation;
use crate::algo::hierarchical::{Levels, slice, with_scratch};
use crate::algo::message::{Team, all_gather};
use crate::algo::pattern::slices::chunks;
use crate::algo::table::{ALWAYS, Algorithm, Body};
use crate::base::buffer::Dst;
use crate::base::error::Result;
use crate::kernel;
use crate::transport::OpKind;
use std::ops::Range;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllGather],
    name: "split_rail",
    description: "the ranks of each node send a slice of its blocks each round the nodes",
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
    let (bytes, slot) = (operation.bytes(), levels.steps.slot_bytes());
    with_scratch(levels, slot, |levels, memory| {
        let most = levels.chunk(operation.element());
        chunks(bytes, most).try_for_each(|chunk| one(levels, operation, &chunk, memory))
    })
}

fn one(
    levels: &mut Levels<'_>,
    operation: &Operation<'_>,
    chunk: &Range<usize>,
    memory: Dst<'_>,
) -> Result<()> {
    let (node, lanes, len) = (levels.node(), levels.lanes(), chunk.len());
    let place = |rank: usize| operation.recv.slice(rank * operation.bytes() + chunk.start, len);
    let own = levels.steps.next_slot()?.slice(0, len);
    kernel::copy(own, operation.send.slice(chunk.start, len));
    levels.steps.publish(&[])?;
    levels.steps.await_all()?;
    for (local, &rank) in levels.nodes.members(node).iter().enumerate() {
        kernel::copy(place(rank), levels.steps.slot(local).slice(0, len));
    }
    match levels.lane() {
        None => levels.steps.note()?,
        Some(lane) => {
            let mine = slice(len, lanes, lane);
            let packed = memory.slice(0, levels.nodes.ranks() * mine.len());
            let ours = levels.packed(packed, node, mine.len());
            for local in 0..levels.steps.size() {
                let from = levels.steps.slot(local).slice(mine.start, mine.len());
                kernel::copy(ours.slice(local * mine.len(), mine.len()), from);
            }
            let keepers = levels.keepers(lane);
            let team = Team::of(&keepers, levels.call.rank())?;
            let blocks: Vec<Dst<'_>> =
                (0..team.size()).map(|node| levels.packed(packed, node, mine.len())).collect();
            all_gather::ring::among(&mut levels.call, team, &|node| blocks[node])?;
            let slot = levels.steps.next_slot()?.slice(0, packed.len());
            kernel::stage(slot, packed.as_src());
            levels.steps.publish(&[])?;
        }
    }
    for lane in 0..lanes {
        if Some(lane) != levels.lane() {
            levels.steps.await_rank(lane)?;
        }
        let part = slice(len, lanes, lane);
        let packed = levels.steps.slot(lane);
        for (position, rank) in levels.in_node_order().enumerate() {
            if levels.nodes.node_of(rank) != node {
                let from = packed.slice(position * part.len(), part.len());
                kernel::copy(place(rank).slice(part.start, part.len()), from);
            }
        }
    }
    Ok(())
}
