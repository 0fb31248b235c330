//! Hierarchical gather: each rank stages its block (copies it to its data slot). The leader of each
//! node sends the blocks of its node to the root in one message. The root is the leader of its own
//! node, and copies all blocks to their positions in its receive buffer.

use crate::algo::Operation;
use crate::algo::hierarchical::{
    HierarchicalOperation, LeaderBlocks, root_chunk_bytes, run_on_leader,
};
use crate::algo::message::{MAX_POSTED_STRIPES, Team};
use crate::algo::pattern::slices::chunks;
use crate::algo::row::Algorithm;
use crate::base::buffer::Dst;
use crate::base::error::Result;
use crate::kernel;
use crate::transport::OpKind;
use std::ops::Range;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Gather],
    name: "two_level",
    description: "the leader of each node sends the blocks of its node to the root",
    ..Algorithm::hierarchical(run)
};

/// Runs the algorithm for one chunk of each block at a time. The chunk fits in the data slot of its
/// rank.
///
/// # Errors
/// As [`crate::algo::message::MessageExchange::wait`].
pub fn run(levels: &mut HierarchicalOperation<'_>, operation: &Operation<'_>) -> Result<()> {
    let root = operation.root()?;
    let ranks = levels.nodes.rank_count();
    let max_chunk =
        root_chunk_bytes(levels.sequencer.slot_bytes(), ranks, operation.element_bytes());
    if levels.sequencer.rank() == levels.local_leader(root) {
        return run_on_leader(levels, operation, max_chunk, run_leader_chunk);
    }
    for chunk in chunks(operation.bytes(), max_chunk) {
        let own = levels.sequencer.next_slot()?.slice(0, chunk.len());
        kernel::copy(own, operation.send.range(&chunk));
        levels.sequencer.publish_finished(&[])?;
    }
    Ok(())
}

/// Gathers one chunk, on a leader.
fn run_leader_chunk(
    levels: &mut HierarchicalOperation<'_>,
    operation: &Operation<'_>,
    blocks: &LeaderBlocks,
    chunk: &Range<usize>,
    memory: Dst<'_>,
) -> Result<()> {
    let (node, len, root) = (levels.node(), chunk.len(), operation.root()?);
    levels.sequencer.publish_unnotified()?;
    levels.sequencer.await_all()?;
    let me = levels.sequencer.rank();
    let node_size = levels.sequencer.size();
    let node_memory = |node| blocks.of_node(memory, node, node_size, len);
    let own_node_blocks = node_memory(node);
    for local in 0..levels.sequencer.size() {
        let from = match local {
            _ if local == me => operation.send.slice(chunk.start, len),
            _ => levels.sequencer.slot(local).slice(0, len),
        };
        kernel::copy(own_node_blocks.slice(local * len, len), from);
    }
    levels.sequencer.checkpoint();
    let team = Team::of(&blocks.leaders, levels.messages.rank())?;
    let nodes = levels.nodes;
    let mut exchange = levels.messages.exchange(team);
    if blocks.leaders[node] != root {
        exchange.send(nodes.node_of(root), own_node_blocks.as_src());
        return exchange.finish();
    }
    for other in (0..team.size()).filter(|&other| other != node) {
        exchange.receive(other, node_memory(other));
        exchange.wait_until_at_most(MAX_POSTED_STRIPES)?;
    }
    exchange.finish()?;
    for (position, rank) in levels.in_node_order().enumerate() {
        let recv_part = operation.recv_block(rank).slice(chunk.start, len);
        kernel::copy(recv_part, memory.as_src().slice(position * len, len));
    }
    Ok(())
}
