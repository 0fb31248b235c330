//! Broadcast between nodes: the root is the leader of its node; the leaders pass the vector on, and
//! everybody reads it from its leader.

use crate::algo::Operation;
use crate::algo::hierarchical::Levels;
use crate::algo::message::Team;
use crate::algo::pattern::slices::chunks;
use crate::algo::pattern::tree;
use crate::algo::table::{ALWAYS, Algorithm, Body};
use crate::base::error::Result;
use crate::kernel;
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Broadcast],
    name: "two_level",
    description: "messages down a tree of one rank of each node, through slots inside",
    fits: ALWAYS,
    pays: ALWAYS,
    ordered: true,
    body: Body::Hierarchical(run),
};

/// How many messages may be posted.
const POSTED: usize = 16;

/// A chunk at a time; the leaders run ahead as far as slots and streams reach.
///
/// # Errors
/// As [`crate::algo::message::Exchange::wait`].
pub fn run(levels: &mut Levels<'_>, operation: &Operation<'_>) -> Result<()> {
    let root = operation.root()?;
    let (leaders, leader) = (levels.leaders(root), levels.leader(root));
    let (bytes, slot) = (operation.bytes(), levels.steps.slot_bytes());
    if levels.steps.rank() != leader {
        for chunk in chunks(bytes, slot) {
            levels.steps.note()?;
            levels.steps.await_rank(leader)?;
            let from = levels.steps.slot(leader).slice(0, chunk.len());
            kernel::copy(operation.recv.slice(chunk.start, chunk.len()), from);
            levels.steps.checkpoint();
        }
        return Ok(());
    }
    let team = Team::of(&leaders, levels.call.rank())?;
    let place = tree::binomial(team.size(), levels.nodes.node_of(root), team.me());
    let mut exchange = levels.call.exchange(team);
    for chunk in chunks(bytes, slot) {
        let (start, len) = (chunk.start, chunk.len());
        let data = match place.parent {
            None => operation.send.slice(start, len),
            Some(parent) => {
                let into = operation.recv.slice(start, len);
                let came = exchange.receive(parent, into);
                exchange.wait(came)?;
                into.as_src()
            }
        };
        for &child in &place.children {
            exchange.send(child, data);
        }
        if !levels.steps.has_slot() {
            // Nobody moves messages while this rank waits for those of its node.
            exchange.wait_few(0)?;
        }
        let slot = levels.steps.next_slot()?.slice(0, len);
        kernel::stage(slot, data);
        levels.steps.give(&[])?;
        exchange.wait_few(POSTED)?;
    }
    exchange.finish()
}
