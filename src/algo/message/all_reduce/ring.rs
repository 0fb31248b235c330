//! The ring, for large vectors: each block goes round once to be folded, and once more to be gathered. Everybody sends
//! about two vectors in all, and always to the same neighbour. Blocks are cut into segments, so that one is
//! folded while the next arrives.

use crate::algo::fold::Fold;
use crate::algo::message::ring::{Ring, WINDOW};
use crate::algo::message::{Call, Team};
use crate::algo::pattern::slices::owned;
use crate::base::buffer::Dst;
use crate::base::error::Result;

/// Both rounds.
///
/// # Errors
/// As [`crate::algo::message::Exchange::wait`], and `OutOfMemory`.
pub fn run(call: &mut Call<'_>, team: Team<'_>, fold: Fold, data: Dst<'_>) -> Result<()> {
    let size = team.size();
    let block = |member: usize| {
        let owned = owned(data.len(), size, member);
        data.slice(owned.start, owned.len())
    };
    let ring = Ring::new(size, &block);
    let mut scratch = call.scratch(WINDOW * ring.segment())?;
    ring.run(call, team, 2 * (size - 1), Some((fold, Dst::from(scratch.as_mut_slice()))))?;
    call.keep(scratch);
    Ok(())
}
