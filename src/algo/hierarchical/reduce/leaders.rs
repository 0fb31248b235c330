//! Reduce between nodes: the leader of each node folds the vectors of its node, the leaders reduce
//! to the root, which is the leader of its own.

use crate::algo::Operation;
use crate::algo::fold::{Fold, contribute, contribute_staged, finish};
use crate::algo::hierarchical::{Levels, with_scratch};
use crate::algo::message::{Team, reduce};
use crate::algo::pattern::slices::chunks;
use crate::algo::pattern::tree;
use crate::algo::table::{ALWAYS, Algorithm, Body};
use crate::base::buffer::Dst;
use crate::base::error::Result;
use crate::kernel::Stager;
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Reduce],
    name: "two_level",
    description: "one rank of each node folds for its node, messages up a tree of those",
    fits: ALWAYS,
    pays: ALWAYS,
    ordered: false,
    body: Body::Hierarchical(run),
};

/// A chunk at a time.
///
/// # Errors
/// As [`crate::algo::message::Exchange::wait`].
pub fn run(levels: &mut Levels<'_>, operation: &Operation<'_>) -> Result<()> {
    let leader = levels.leader(operation.root()?);
    let (bytes, slot) = (operation.bytes(), levels.steps.slot_bytes());
    if levels.steps.rank() == leader {
        return with_scratch(levels, 2 * slot, |levels, memory| lead(levels, operation, memory));
    }
    let mut stager = Stager::of(bytes);
    for chunk in chunks(bytes, slot) {
        let own = levels.steps.next_slot()?.slice(0, chunk.len());
        contribute_staged(
            operation,
            &mut stager,
            own,
            operation.send.slice(chunk.start, chunk.len()),
        )?;
        levels.steps.give(&[])?;
    }
    Ok(())
}

fn lead(levels: &mut Levels<'_>, operation: &Operation<'_>, memory: Dst<'_>) -> Result<()> {
    let (root, fold) = (operation.root()?, Fold::partial(operation)?);
    let inside = Fold::inside(operation, levels.nodes.ranks())?;
    let leaders = levels.leaders(root);
    let team = Team::of(&leaders, levels.call.rank())?;
    let place = tree::binomial(team.size(), levels.nodes.node_of(root), team.me());
    let slot = levels.steps.slot_bytes();
    for chunk in chunks(operation.bytes(), slot) {
        let (start, len) = (chunk.start, chunk.len());
        let own = levels.steps.next_slot()?.slice(0, len);
        contribute(operation, own, operation.send.slice(start, len))?;
        levels.steps.note()?;
        levels.steps.await_all()?;
        let part = match place.parent {
            None => operation.recv.slice(start, len),
            Some(_) => memory.slice(slot, len),
        };
        inside.in_order(part, levels.steps.size(), |rank| levels.steps.slot(rank).slice(0, len));
        levels.steps.checkpoint();
        reduce::tree::up(&mut levels.call, team, &place, fold, part, memory.slice(0, len))?;
    }
    finish(operation, operation.recv, levels.nodes.ranks())
}
