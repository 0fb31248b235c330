//! Hierarchical reduce-scatter, split rail:
//!
//! 1. Each rail owner (the n-th rank of each node owns the n-th slice) folds its slice of every
//!    block over the vectors of its node.
//! 2. Each rail owner sends the partial results for another node to the owner of the same rail on
//!    that node, and folds the partial results that it receives.
//! 3. Each rank copies the slices of its block from the rail owners of its node.

use crate::algo::Operation;
use crate::algo::fold::{Fold, stage_contribution};
use crate::algo::hierarchical::{HierarchicalOperation, with_scratch};
use crate::algo::message::{Team, reduce_scatter};
use crate::algo::pattern::slices::{chunks, owned_slice};
use crate::algo::row::Algorithm;
use crate::base::buffer::Dst;
use crate::base::error::Result;
use crate::kernel::{self, Stager};
use crate::transport::OpKind;
use std::ops::Range;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::ReduceScatter],
    name: "split_rail",
    description: "each rank of a node reduces one slice of all blocks and exchanges messages about it with the \
                  other nodes",
    ordered: false,
    ..Algorithm::hierarchical(run)
};

/// Runs the algorithm for one chunk of each block at a time, so that the chunks for all ranks fit
/// in a data slot.
///
/// # Errors
/// As [`crate::algo::message::MessageExchange::wait`].
pub fn run(levels: &mut HierarchicalOperation<'_>, operation: &Operation<'_>) -> Result<()> {
    let (bytes, slot) = (operation.bytes(), levels.sequencer.slot_bytes());
    with_scratch(levels, 3 * slot, |levels, memory| {
        let max_chunk = levels.chunk_bytes(operation.element_bytes());
        chunks(bytes, max_chunk).try_for_each(|chunk| run_chunk(levels, operation, &chunk, memory))
    })
}

fn run_chunk(
    levels: &mut HierarchicalOperation<'_>,
    operation: &Operation<'_>,
    chunk: &Range<usize>,
    memory: Dst<'_>,
) -> Result<()> {
    let (start, rails, len) = (chunk.start, levels.rail_count(), chunk.len());
    let slot = levels.sequencer.next_slot()?;
    for (position, rank) in levels.in_node_order().enumerate() {
        let part = operation.send.slice(rank * operation.bytes() + start, len);
        let mut stager = Stager::for_total(len);
        stage_contribution(operation, &mut stager, slot.slice(position * len, len), part)?;
    }
    levels.sequencer.publish(&[])?;
    levels.sequencer.await_all()?;
    match levels.own_rail() {
        None => levels.sequencer.publish_unnotified()?,
        Some(rail) => run_rail_owner(levels, operation, rail, len, memory)?,
    }
    for rail in 0..rails {
        if Some(rail) != levels.own_rail() {
            levels.sequencer.await_rank(rail)?;
        }
        let part = owned_slice(len, rails, rail);
        let recv_part = operation.recv.slice(start + part.start, part.len());
        let offset = levels.sequencer.rank() * part.len();
        kernel::copy(recv_part, levels.sequencer.slot(rail).slice(offset, part.len()));
    }
    Ok(())
}

/// Runs the part of a rail owner: folds its slice of every block, exchanges the partial results
/// with the other owners of the rail, and publishes the results for its node.
fn run_rail_owner(
    levels: &mut HierarchicalOperation<'_>,
    operation: &Operation<'_>,
    rail: usize,
    len: usize,
    memory: Dst<'_>,
) -> Result<()> {
    let (node, fold) = (levels.node(), Fold::partial(operation)?);
    let node_fold = Fold::subset(operation, levels.nodes.rank_count())?;
    let own_slice = owned_slice(len, levels.rail_count(), rail);
    let total = levels.nodes.rank_count() * own_slice.len();
    let (packed, scratch) = (memory.slice(0, total), memory.slice(total, memory.len() - total));
    for position in 0..levels.nodes.rank_count() {
        let part = packed.slice(position * own_slice.len(), own_slice.len());
        node_fold.fold_in_order(part, levels.sequencer.size(), |local| {
            levels.sequencer.slot(local).slice(position * len + own_slice.start, own_slice.len())
        });
    }
    let owners = levels.rail_owners(rail);
    let team = Team::of(&owners, levels.messages.rank())?;
    let blocks = levels.node_blocks(packed, own_slice.len());
    let own_block = blocks[node];
    let outgoing_block = |node: usize| blocks[node].as_src();
    reduce_scatter::pairwise::run_team(
        &mut levels.messages,
        team,
        fold,
        &outgoing_block,
        own_block,
        scratch,
    )?;
    kernel::stage(levels.sequencer.next_slot()?.slice(0, own_block.len()), own_block.as_src());
    levels.sequencer.publish(&[])
}
