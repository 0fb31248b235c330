//! Reduce-scatter between nodes, in lanes: the keeper of each folds its slice of the vectors of its
//! node, for all ranks; the keepers exchange what is for each other's nodes; and everybody gets its
//! block from them.

use crate::algo::Operation;
use crate::algo::fold::{Fold, contribute_staged, finish};
use crate::algo::hierarchical::{Levels, slice, with_scratch};
use crate::algo::message::{Team, reduce_scatter};
use crate::algo::pattern::slices::chunks;
use crate::algo::table::{ALWAYS, Algorithm, Body};
use crate::base::buffer::Dst;
use crate::base::error::Result;
use crate::kernel::{self, Stager};
use crate::transport::OpKind;
use std::ops::Range;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::ReduceScatter],
    name: "split_rail",
    description: "the ranks of each node fold a slice of all blocks each and exchange messages about it",
    fits: ALWAYS,
    pays: ALWAYS,
    ordered: false,
    body: Body::Hierarchical(run),
};

/// A chunk of each block at a time, so that those for all ranks fit a slot.
///
/// # Errors
/// As [`crate::algo::message::Exchange::wait`].
pub fn run(levels: &mut Levels<'_>, operation: &Operation<'_>) -> Result<()> {
    let (bytes, slot) = (operation.bytes(), levels.steps.slot_bytes());
    with_scratch(levels, 3 * slot, |levels, memory| {
        let most = levels.chunk(operation.element());
        chunks(bytes, most).try_for_each(|chunk| one(levels, operation, &chunk, memory))
    })?;
    finish(operation, operation.recv, levels.nodes.ranks())
}

fn one(
    levels: &mut Levels<'_>,
    operation: &Operation<'_>,
    chunk: &Range<usize>,
    memory: Dst<'_>,
) -> Result<()> {
    let (start, lanes, len) = (chunk.start, levels.lanes(), chunk.len());
    let slot = levels.steps.next_slot()?;
    for (position, rank) in levels.in_node_order().enumerate() {
        let part = operation.send.slice(rank * operation.bytes() + start, len);
        let mut stager = Stager::of(len);
        contribute_staged(operation, &mut stager, slot.slice(position * len, len), part)?;
    }
    levels.steps.publish(&[])?;
    levels.steps.await_all()?;
    match levels.lane() {
        None => levels.steps.note()?,
        Some(lane) => keep(levels, operation, lane, len, memory)?,
    }
    for lane in 0..lanes {
        if Some(lane) != levels.lane() {
            levels.steps.await_rank(lane)?;
        }
        let part = slice(len, lanes, lane);
        let place = operation.recv.slice(start + part.start, part.len());
        let offset = levels.steps.rank() * part.len();
        kernel::copy(place, levels.steps.slot(lane).slice(offset, part.len()));
    }
    Ok(())
}

/// The keeper of a lane folds its slices, exchanges them, and publishes those of its node.
fn keep(
    levels: &mut Levels<'_>,
    operation: &Operation<'_>,
    lane: usize,
    len: usize,
    memory: Dst<'_>,
) -> Result<()> {
    let (node, fold) = (levels.node(), Fold::partial(operation)?);
    let inside = Fold::inside(operation, levels.nodes.ranks())?;
    let mine = slice(len, levels.lanes(), lane);
    let total = levels.nodes.ranks() * mine.len();
    let (packed, scratch) = (memory.slice(0, total), memory.slice(total, memory.len() - total));
    for position in 0..levels.nodes.ranks() {
        let part = packed.slice(position * mine.len(), mine.len());
        inside.in_order(part, levels.steps.size(), |local| {
            levels.steps.slot(local).slice(position * len + mine.start, mine.len())
        });
    }
    let keepers = levels.keepers(lane);
    let team = Team::of(&keepers, levels.call.rank())?;
    let blocks: Vec<Dst<'_>> =
        (0..team.size()).map(|node| levels.packed(packed, node, mine.len())).collect();
    let ours = blocks[node];
    let give = |node: usize| blocks[node].as_src();
    reduce_scatter::pairwise::among(&mut levels.call, team, fold, &give, ours, scratch)?;
    kernel::stage(levels.steps.next_slot()?.slice(0, ours.len()), ours.as_src());
    levels.steps.publish(&[])
}
