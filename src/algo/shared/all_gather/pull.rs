//! Large blocks, read where they lie: each is copied once by each rank that wants it.

use super::{direct, staged};
use crate::algo::Operation;
use crate::algo::shared::steps::Steps;
use crate::algo::table::{ATTACHED, Algorithm, Body};
use crate::base::error::Result;
use crate::kernel;
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllGather, OpKind::AllGatherV],
    name: "cma_read",
    description: "blocks read in the memory of their ranks; one hop",
    fits: ATTACHED,
    pays: |bytes, shape| shape.pulls && bytes >= if shape.crowded { 8 << 20 } else { 128 << 10 },
    ordered: true,
    body: Body::Shared(run),
};

/// Directly where it can be. Else two steps: where the blocks are, and that all have been read.
///
/// # Errors
/// As [`Steps::await_all`].
pub fn run(steps: &mut Steps<'_>, operation: &Operation<'_>) -> Result<()> {
    if direct::run(steps, operation)? {
        return Ok(());
    }
    steps.expose_sent(operation)?;
    let own = operation.recv_block(steps.rank());
    kernel::copy_part(operation.recv.len(), own, operation.send);
    let mut everything = true;
    for rank in steps.others() {
        let theirs = steps.exposed(rank)?;
        everything = everything && steps.try_pull(theirs, 0, operation.recv_block(rank))?;
    }
    if steps.close_tried(everything)? { Ok(()) } else { staged::run(steps, operation) }
}
