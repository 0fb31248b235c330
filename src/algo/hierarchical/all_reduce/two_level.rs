//! All-reduce of small vectors, two-level: each node leader folds the vectors of its node, and
//! all-reduces the result with the other leaders.

use super::all_reduce_between_nodes;
use crate::algo::Operation;
use crate::algo::fold::{Fold, stage_contribution};
use crate::algo::hierarchical::HierarchicalOperation;
use crate::algo::pattern::slices::chunks;
use crate::algo::row::{Algorithm, GroupShape};
use crate::base::error::Result;
use crate::kernel::{self, Stager};
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllReduce],
    name: "two_level",
    description: "the leader of each node reduces the vectors of its node and exchanges messages with the other \
                  leaders",
    pays,
    ordered: false,
    ..Algorithm::hierarchical(run)
};

/// Returns whether the leaders alone are faster than the rails. With rails, several ranks of each
/// node share the work, but two hops within the node are added.
fn pays(bytes: usize, shape: &GroupShape) -> bool {
    shape.min_ranks_per_node == 1 || bytes <= 32 << 10
}

/// Runs the algorithm for one chunk at a time.
///
/// # Errors
/// As [`crate::algo::message::MessageExchange::wait`].
pub fn run(levels: &mut HierarchicalOperation<'_>, operation: &Operation<'_>) -> Result<()> {
    let (size, fold) = (levels.sequencer.size(), Fold::partial(operation)?);
    let node_fold = Fold::subset(operation, levels.nodes.rank_count())?;
    let leaders = levels.rail_owners(0);
    let mut stager = Stager::for_total(operation.bytes());
    for chunk in chunks(operation.bytes(), levels.sequencer.slot_bytes()) {
        let (start, len) = (chunk.start, chunk.len());
        let result = operation.recv.slice(start, len);
        let own = levels.sequencer.next_slot()?.slice(0, len);
        stage_contribution(operation, &mut stager, own, operation.send.slice(start, len))?;
        levels.sequencer.publish(&[])?;
        if levels.sequencer.rank() != 0 {
            levels.sequencer.publish_unnotified()?;
            levels.sequencer.await_rank(0)?;
            kernel::copy(result, levels.sequencer.slot(0).slice(0, len));
            continue;
        }
        levels.sequencer.await_all()?;
        node_fold.fold_in_order(result, size, |rank| levels.sequencer.slot(rank).slice(0, len));
        all_reduce_between_nodes(levels, &leaders, fold, result)?;
        kernel::stage(levels.sequencer.next_slot()?.slice(0, len), result.as_src());
        levels.sequencer.publish_finished(&[])?;
    }
    Ok(())
}
