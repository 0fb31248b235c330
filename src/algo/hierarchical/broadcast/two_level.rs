//! Hierarchical broadcast. Each node has a leader; the root is the leader of its own node. The
//! leaders pass the vector down a tree, and each other rank reads the vector from the data slots of
//! its leader.

use crate::algo::Operation;
use crate::algo::hierarchical::HierarchicalOperation;
use crate::algo::message::Team;
use crate::algo::pattern::slices::chunks;
use crate::algo::pattern::tree;
use crate::algo::row::Algorithm;
use crate::base::error::Result;
use crate::kernel;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Broadcast],
    name: "two_level",
    description: "messages down a tree of node leaders, data slots inside each node",
    ..Algorithm::hierarchical(run)
};

/// The maximum number of posted stripes (pieces of messages) that a leader leaves in flight.
const MAX_POSTED_MESSAGES: usize = 16;

/// Runs the algorithm for one chunk at a time. A leader runs ahead of its readers until its data
/// slots or its streams are full.
///
/// # Errors
/// As [`crate::algo::message::MessageExchange::wait`].
pub fn run(levels: &mut HierarchicalOperation<'_>, operation: &Operation<'_>) -> Result<()> {
    let root = operation.root()?;
    let (leaders, leader) = (levels.node_leaders(root), levels.local_leader(root));
    let (bytes, slot) = (operation.bytes(), levels.sequencer.slot_bytes());
    if levels.sequencer.rank() != leader {
        for chunk in chunks(bytes, slot) {
            levels.sequencer.publish_unnotified()?;
            levels.sequencer.await_rank(leader)?;
            let from = levels.sequencer.slot(leader).slice(0, chunk.len());
            kernel::copy(operation.recv.range(&chunk), from);
            levels.sequencer.checkpoint();
        }
        return Ok(());
    }
    let team = Team::of(&leaders, levels.messages.rank())?;
    let position =
        tree::binomial_position(team.size(), levels.nodes.node_of(root), team.own_position());
    let mut exchange = levels.messages.exchange(team);
    for chunk in chunks(bytes, slot) {
        let (start, len) = (chunk.start, chunk.len());
        let data = match position.parent {
            None => operation.send.slice(start, len),
            Some(parent) => {
                let into = operation.recv.slice(start, len);
                let received = exchange.receive(parent, into);
                exchange.wait(received)?;
                into.as_src()
            }
        };
        for &child in &position.children {
            exchange.send(child, data);
        }
        if !levels.sequencer.has_free_slot() {
            // `next_slot` waits for the ranks of this node and makes no progress on messages, so
            // this rank completes its messages before the call.
            exchange.wait_until_at_most(0)?;
        }
        let slot = levels.sequencer.next_slot()?.slice(0, len);
        kernel::stage(slot, data);
        levels.sequencer.publish_finished(&[])?;
        exchange.wait_until_at_most(MAX_POSTED_MESSAGES)?;
    }
    exchange.finish()
}
