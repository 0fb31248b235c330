//! Blocks that fit beside the step number: everybody publishes its block, everybody copies all blocks.

use crate::algo::Operation;
use crate::algo::shared::steps::Steps;
use crate::algo::table::{ALWAYS, Algorithm, Body, FITS_A_LINE};
use crate::base::buffer::{Dst, Src};
use crate::base::error::Result;
use crate::kernel;
use crate::transport::OpKind;
use crate::transport::line::INLINE_BYTES;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllGather, OpKind::AllGatherV],
    name: "inline",
    description: "blocks beside the step number; at most 48 bytes each",
    fits: FITS_A_LINE,
    pays: ALWAYS,
    ordered: true,
    body: Body::Shared(run),
};

/// One step.
///
/// # Errors
/// As [`Steps::await_all`].
pub fn run(steps: &mut Steps<'_>, operation: &Operation<'_>) -> Result<()> {
    let mut payload = [0; INLINE_BYTES];
    let own = &mut payload[..operation.send.len()];
    kernel::copy(Dst::from(&mut *own), operation.send);
    steps.exchange(own)?;
    kernel::copy(operation.recv_block(steps.rank()), operation.send);
    for rank in steps.others() {
        let block = operation.recv_block(rank);
        let theirs = &mut payload[..block.len()];
        steps.payload(rank, theirs);
        kernel::copy(block, Src::from(&*theirs));
    }
    Ok(())
}
