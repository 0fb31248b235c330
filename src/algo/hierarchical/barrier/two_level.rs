//! Hierarchical barrier: the ranks of each node synchronise with their leader in shared memory, and
//! the leaders run a barrier over messages.

use crate::algo::Operation;
use crate::algo::hierarchical::HierarchicalOperation;
use crate::algo::message::{Team, barrier};
use crate::algo::row::Algorithm;
use crate::base::error::Result;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Barrier],
    name: "two_level",
    description: "through the leader of each node, and messages between the leaders",
    ..Algorithm::hierarchical(run)
};

/// Each rank notifies its node leader, the leaders run a barrier over messages, and each leader
/// notifies its node.
///
/// # Errors
/// As [`crate::algo::message::MessageExchange::wait`].
pub fn run(levels: &mut HierarchicalOperation<'_>, _: &Operation<'_>) -> Result<()> {
    levels.sequencer.publish(&[])?;
    if levels.sequencer.rank() == 0 {
        levels.sequencer.await_all()?;
        let leaders = levels.rail_owners(0);
        let team = Team::of(&leaders, levels.messages.rank())?;
        barrier::dissemination::run_team(&mut levels.messages, team)?;
        return levels.sequencer.publish_finished(&[]);
    }
    levels.sequencer.publish_unnotified()?;
    levels.sequencer.await_rank(0)
}
