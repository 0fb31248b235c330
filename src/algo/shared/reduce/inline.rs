//! Vectors that fit beside the step number: everybody hands its vector to the root, which folds them. Only the root
//! waits; the others may run ahead as far as their lines reach.

use crate::algo::Operation;
use crate::algo::fold::contribute;
use crate::algo::shared::all_reduce::inline::fold_payloads;
use crate::algo::shared::steps::Steps;
use crate::algo::table::{ALWAYS, Algorithm, Body, FITS_A_LINE};
use crate::base::buffer::{Dst, Src};
use crate::base::error::Result;
use crate::transport::OpKind;
use crate::transport::line::INLINE_BYTES;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Reduce],
    name: "inline",
    description: "payload beside the step number, the root folds; at most 48 bytes",
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
    let bytes = operation.bytes();
    let mut own = [0; INLINE_BYTES];
    contribute(operation, Dst::from(&mut own[..bytes]), operation.send)?;
    if steps.rank() != operation.root()? {
        return steps.give(&own[..bytes]);
    }
    steps.note()?;
    steps.await_all()?;
    fold_payloads(steps, operation, Src::from(&own[..bytes]))
}
