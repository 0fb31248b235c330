//! Hierarchical scatter. The root is the leader of its own node. It sends the leader of each other
//! node the blocks of that node in one message. Each rank reads its block from the data slot of its
//! leader.

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
    kinds: &[OpKind::Scatter],
    name: "two_level",
    description: "the root sends the leader of each node the blocks of its node, data slots inside each node",
    ..Algorithm::hierarchical(run)
};

/// Runs the algorithm for one chunk of each block at a time, so that the chunks of a node fit in
/// the data slot of its leader.
///
/// # Errors
/// As [`crate::algo::message::MessageExchange::wait`].
pub fn run(levels: &mut HierarchicalOperation<'_>, operation: &Operation<'_>) -> Result<()> {
    let root = operation.root()?;
    let (leader, ranks) = (levels.local_leader(root), levels.nodes.rank_count());
    let room = levels.sequencer.slot_bytes() / levels.nodes.max_ranks_per_node();
    let max_chunk = root_chunk_bytes(room, ranks, operation.element_bytes());
    if levels.sequencer.rank() == leader {
        return run_on_leader(levels, operation, max_chunk, run_leader_chunk);
    }
    let me = levels.sequencer.rank();
    for chunk in chunks(operation.bytes(), max_chunk) {
        let len = chunk.len();
        levels.sequencer.publish_unnotified()?;
        levels.sequencer.await_rank(leader)?;
        let from = levels.sequencer.slot(leader).slice(me * len, len);
        kernel::copy(operation.recv.slice(chunk.start, len), from);
        levels.sequencer.checkpoint();
    }
    Ok(())
}

/// Scatters one chunk, on a leader.
fn run_leader_chunk(
    levels: &mut HierarchicalOperation<'_>,
    operation: &Operation<'_>,
    blocks: &LeaderBlocks,
    chunk: &Range<usize>,
    memory: Dst<'_>,
) -> Result<()> {
    let (node, len, root) = (levels.node(), chunk.len(), operation.root()?);
    let node_size = levels.sequencer.size();
    let node_memory = |node| blocks.of_node(memory, node, node_size, len);
    let own_node_blocks = node_memory(node);
    let team = Team::of(&blocks.leaders, levels.messages.rank())?;
    let nodes = levels.nodes;
    if blocks.leaders[node] == root {
        for (position, rank) in levels.in_node_order().enumerate() {
            let from = operation.send_block(rank).slice(chunk.start, len);
            kernel::copy(memory.slice(position * len, len), from);
        }
    }
    let mut exchange = levels.messages.exchange(team);
    if blocks.leaders[node] == root {
        for other in (0..team.size()).filter(|&other| other != node) {
            exchange.send(other, node_memory(other).as_src());
            exchange.wait_until_at_most(MAX_POSTED_STRIPES)?;
        }
    } else {
        exchange.receive(nodes.node_of(root), own_node_blocks);
    }
    exchange.finish()?;
    let slot = levels.sequencer.next_slot()?.slice(0, own_node_blocks.len());
    kernel::stage(slot, own_node_blocks.as_src());
    levels.sequencer.publish_finished(&[])?;
    let own = own_node_blocks.as_src().slice(levels.sequencer.rank() * len, len);
    kernel::copy(operation.recv.slice(chunk.start, len), own);
    Ok(())
}
