//! Barrier between nodes: through the leaders.

use crate::algo::Operation;
use crate::algo::hierarchical::HierarchicalOperation;
use crate::algo::message::{Team, barrier};
use crate::algo::table::{ALWAYS, Algorithm, AlgorithmBody};
use crate::base::error::Result;
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Barrier],
    name: "two_level",
    description: "through one rank of each node, and messages between those",
    fits: ALWAYS,
    pays: ALWAYS,
    ordered: true,
    body: AlgorithmBody::Hierarchical(run),
};

/// Everybody tells its leader; the leaders exchange messages, and tell everybody.
///
/// # Errors
/// As [`crate::algo::message::Exchange::wait`].
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
