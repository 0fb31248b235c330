//! Hierarchical all-gather, split rail. Each rail owner (the n-th rank of each node owns the n-th
//! slice) collects its slice of the blocks of its node, and passes these slices around the ring of
//! nodes.

use crate::algo::Operation;
use crate::algo::hierarchical::{HierarchicalOperation, with_scratch};
use crate::algo::message::{Team, all_gather};
use crate::algo::pattern::slices::{chunks, owned_slice};
use crate::algo::row::Algorithm;
use crate::base::buffer::Dst;
use crate::base::error::Result;
use crate::kernel;
use crate::transport::OpKind;
use std::ops::Range;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllGather],
    name: "split_rail",
    description: "each rank of a node sends one slice of the node's blocks around a ring of the nodes",
    ..Algorithm::hierarchical(run)
};

/// Runs the algorithm for one chunk of each block at a time, so that the chunks of all ranks fit in
/// a data slot.
///
/// # Errors
/// As [`crate::algo::message::MessageExchange::wait`].
pub fn run(levels: &mut HierarchicalOperation<'_>, operation: &Operation<'_>) -> Result<()> {
    let (bytes, slot) = (operation.bytes(), levels.sequencer.slot_bytes());
    with_scratch(levels, slot, |levels, memory| {
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
    let (node, rails, len) = (levels.node(), levels.rail_count(), chunk.len());
    let recv_part = |rank: usize| operation.recv.slice(rank * operation.bytes() + chunk.start, len);
    let own = levels.sequencer.next_slot()?.slice(0, len);
    kernel::copy(own, operation.send.slice(chunk.start, len));
    levels.sequencer.publish(&[])?;
    levels.sequencer.await_all()?;
    for (local, &rank) in levels.nodes.members(node).iter().enumerate() {
        kernel::copy(recv_part(rank), levels.sequencer.slot(local).slice(0, len));
    }
    match levels.own_rail() {
        None => levels.sequencer.publish_unnotified()?,
        Some(rail) => {
            let own_slice = owned_slice(len, rails, rail);
            let packed = memory.slice(0, levels.nodes.rank_count() * own_slice.len());
            let blocks = levels.node_blocks(packed, own_slice.len());
            for local in 0..levels.sequencer.size() {
                let from = levels.sequencer.slot(local).range(&own_slice);
                kernel::copy(blocks[node].slice(local * own_slice.len(), own_slice.len()), from);
            }
            let owners = levels.rail_owners(rail);
            let team = Team::of(&owners, levels.messages.rank())?;
            all_gather::ring::run_team(&mut levels.messages, team, &|node| blocks[node])?;
            let slot = levels.sequencer.next_slot()?.slice(0, packed.len());
            kernel::stage(slot, packed.as_src());
            levels.sequencer.publish(&[])?;
        }
    }
    for rail in 0..rails {
        if Some(rail) != levels.own_rail() {
            levels.sequencer.await_rank(rail)?;
        }
        let part = owned_slice(len, rails, rail);
        let packed = levels.sequencer.slot(rail);
        for (position, rank) in levels.in_node_order().enumerate() {
            if levels.nodes.node_of(rank) != node {
                let from = packed.slice(position * part.len(), part.len());
                kernel::copy(recv_part(rank).range(&part), from);
            }
        }
    }
    Ok(())
}
