//! Barrier between nodes: through the leaders.

use super::Levels;
use crate::algo::Operation;
use crate::algo::message::{Team, barrier};
use crate::base::error::Result;

/// Everybody tells its leader; the leaders exchange messages, and tell everybody.
///
/// # Errors
/// As [`crate::algo::message::Exchange::wait`].
pub fn leader(levels: &mut Levels<'_>, _: &Operation<'_>) -> Result<()> {
    levels.steps.publish(&[])?;
    if levels.steps.rank() == 0 {
        levels.steps.await_all()?;
        let leaders = levels.keepers(0);
        let team = Team::of(&leaders, levels.call.rank())?;
        barrier::dissemination(&mut levels.call, team)?;
        return levels.steps.give(&[]);
    }
    levels.steps.note()?;
    levels.steps.await_rank(0)
}
