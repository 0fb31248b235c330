//! Large blocks, read where they lie: each is copied once.

use super::{direct, staged};
use crate::algo::Operation;
use crate::algo::select::Shape;
use crate::algo::shared::steps::Steps;
use crate::algo::table::{ATTACHED, Algorithm, Body};
use crate::base::error::Result;
use crate::kernel;
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllToAll],
    name: "cma_read",
    description: "blocks read in the memory of their ranks; one hop",
    fits: ATTACHED,
    pays,
    ordered: true,
    body: Body::Shared(run),
};

/// From which blocks on: among ranks that have no core each, by what all together move.
fn pays(bytes: usize, shape: &Shape) -> bool {
    let moved = bytes.saturating_mul(shape.ranks).saturating_mul(shape.ranks);
    shape.pulls && if shape.crowded { moved >= 2 << 20 } else { bytes >= 128 << 10 }
}

/// Directly where it can be. Else two steps: where the blocks are, and that all have been read.
///
/// # Errors
/// As [`Steps::await_all`].
pub fn run(steps: &mut Steps<'_>, operation: &Operation<'_>) -> Result<()> {
    if direct::run(steps, operation)? {
        return Ok(());
    }
    let me = steps.rank();
    steps.expose_sent(operation)?;
    kernel::copy_part(operation.recv.len(), operation.recv_block(me), operation.send_block(me));
    let mut everything = true;
    for rank in steps.others() {
        let theirs = steps.exposed(rank)?;
        let place = operation.recv_block(rank);
        // All blocks have one length.
        everything = everything && steps.try_pull(theirs, me * place.len(), place)?;
    }
    if steps.close_tried(everything)? { Ok(()) } else { staged::run(steps, operation) }
}
