//! Hierarchical reduce: the leader of each node folds the vectors of its node, and the leaders
//! reduce their results to the root. The root is the leader of its own node.

use crate::algo::Operation;
use crate::algo::fold::{Fold, copy_contribution, stage_contribution};
use crate::algo::hierarchical::{HierarchicalOperation, with_scratch};
use crate::algo::message::{Team, reduce};
use crate::algo::pattern::slices::chunks;
use crate::algo::pattern::tree;
use crate::algo::row::Algorithm;
use crate::base::buffer::Dst;
use crate::base::error::Result;
use crate::kernel::Stager;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Reduce],
    name: "two_level",
    description: "the leader of each node reduces the vectors of its node, messages up a tree of leaders",
    ordered: false,
    ..Algorithm::hierarchical(run)
};

/// Runs the algorithm for one chunk at a time.
///
/// # Errors
/// As [`crate::algo::message::MessageExchange::wait`].
pub fn run(levels: &mut HierarchicalOperation<'_>, operation: &Operation<'_>) -> Result<()> {
    let leader = levels.local_leader(operation.root()?);
    let (bytes, slot) = (operation.bytes(), levels.sequencer.slot_bytes());
    if levels.sequencer.rank() == leader {
        return with_scratch(levels, 2 * slot, |levels, memory| {
            run_leader(levels, operation, memory)
        });
    }
    let mut stager = Stager::for_total(bytes);
    for chunk in chunks(bytes, slot) {
        let own = levels.sequencer.next_slot()?.slice(0, chunk.len());
        stage_contribution(operation, &mut stager, own, operation.send.range(&chunk))?;
        levels.sequencer.publish_finished(&[])?;
    }
    Ok(())
}

fn run_leader(
    levels: &mut HierarchicalOperation<'_>,
    operation: &Operation<'_>,
    memory: Dst<'_>,
) -> Result<()> {
    let (root, fold) = (operation.root()?, Fold::partial(operation)?);
    let node_fold = Fold::subset(operation, levels.nodes.rank_count())?;
    let leaders = levels.node_leaders(root);
    let team = Team::of(&leaders, levels.messages.rank())?;
    let position =
        tree::binomial_position(team.size(), levels.nodes.node_of(root), team.own_position());
    let slot = levels.sequencer.slot_bytes();
    for chunk in chunks(operation.bytes(), slot) {
        let (start, len) = (chunk.start, chunk.len());
        let own = levels.sequencer.next_slot()?.slice(0, len);
        copy_contribution(operation, own, operation.send.slice(start, len))?;
        levels.sequencer.publish_unnotified()?;
        levels.sequencer.await_all()?;
        let part = match position.parent {
            None => operation.recv.slice(start, len),
            Some(_) => memory.slice(slot, len),
        };
        node_fold.fold_in_order(part, levels.sequencer.size(), |rank| {
            levels.sequencer.slot(rank).slice(0, len)
        });
        levels.sequencer.checkpoint();
        reduce::binomial::reduce_up_tree(
            &mut levels.messages,
            team,
            &position,
            fold,
            part,
            memory.slice(0, len),
        )?;
    }
    Ok(())
}
