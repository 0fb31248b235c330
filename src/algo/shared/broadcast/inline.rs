//! Vectors that fit beside the step number: the root publishes, the others read. The root does not wait for its
//! readers but runs ahead as far as its lines reach.

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
    kinds: &[OpKind::Broadcast],
    name: "inline",
    description: "payload beside the step number; at most 48 bytes",
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
    let (bytes, root) = (operation.bytes(), operation.root()?);
    let mut payload = [0; INLINE_BYTES];
    let payload = &mut payload[..bytes];
    if steps.rank() == root {
        kernel::copy(Dst::from(&mut *payload), operation.send);
        return steps.give(payload);
    }
    steps.note()?;
    steps.look_for(root);
    steps.await_rank(root)?;
    steps.payload(root, payload);
    kernel::copy(operation.recv, Src::from(&*payload));
    Ok(())
}
