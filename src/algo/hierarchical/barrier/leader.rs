//! Barrier between nodes: through the leaders.

use crate::algo::Operation;
use crate::algo::hierarchical::Levels;
use crate::algo::message::{Team, barrier};
use crate::algo::table::{ALWAYS, Algorithm, Body};
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
    body: Body::Hierarchical(run),
};

/// Everybody tells its leader; the leaders exchange messages, and tell everybody.
///
/// # Errors
/// As [`crate::algo::message::Exchange::wait`].
pub fn run(levels: &mut Levels<'_>, _: &Operation<'_>) -> Result<()> {
    levels.steps.publish(&[])?;
    if levels.steps.rank() == 0 {
        levels.steps.await_all()?;
        let leaders = levels.keepers(0);
        let team = Team::of(&leaders, levels.call.rank())?;
        barrier::dissemination::among(&mut levels.call, team)?;
        return levels.steps.give(&[]);
    }
    levels.steps.note()?;
    levels.steps.await_rank(0)
}
