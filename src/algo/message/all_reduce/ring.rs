//! The ring, for large vectors: each block goes round once to be folded, and once more to be
//! gathered. Everybody sends about two vectors in all, and always to the same neighbour. Blocks are
//! cut into segments, so that one is folded while the next arrives.

use crate::algo::Operation;
use crate::algo::fold::Fold;
use crate::algo::message::ring::{Ring, WINDOW};
use crate::algo::message::{Call, Team};
use crate::algo::pattern::slices::owned;
use crate::algo::table::{ALWAYS, Algorithm, Body};
use crate::base::buffer::Dst;
use crate::base::error::Result;
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllReduce],
    name: "ring",
    description: "messages, blocks go round twice in segments",
    fits: ALWAYS,
    pays: ALWAYS,
    ordered: false,
    body: Body::Message(run),
};

/// All ranks.
///
/// # Errors
/// As [`among`].
pub fn run(call: &mut Call<'_>, team: Team<'_>, operation: &Operation<'_>) -> Result<()> {
    super::by_and_by(call, team, operation, among)
}

/// Both rounds.
///
/// # Errors
/// As [`crate::algo::message::Exchange::wait`], and `OutOfMemory`.
pub fn among(call: &mut Call<'_>, team: Team<'_>, fold: Fold, data: Dst<'_>) -> Result<()> {
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
