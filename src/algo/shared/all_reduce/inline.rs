//! Payloads that fit beside the step number: one cache line from each rank, one hop.

use crate::algo::Operation;
use crate::algo::fold::{Fold, contribute};
use crate::algo::shared::steps::Steps;
use crate::algo::table::{ALWAYS, Algorithm, Body, FITS_A_LINE};
use crate::base::buffer::{Dst, Src};
use crate::base::error::Result;
use crate::transport::OpKind;
use crate::transport::line::INLINE_BYTES;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllReduce],
    name: "inline",
    description: "payload beside the step number, everybody folds all; at most 48 bytes",
    fits: FITS_A_LINE,
    pays: ALWAYS,
    ordered: true,
    body: Body::Shared(run),
};

/// Everybody publishes its vector in its line; everybody reads all lines and folds them.
///
/// # Errors
/// As [`Steps::await_all`].
pub fn run(steps: &mut Steps<'_>, operation: &Operation<'_>) -> Result<()> {
    let bytes = operation.bytes();
    let mut own = [0; INLINE_BYTES];
    contribute(operation, Dst::from(&mut own[..bytes]), operation.send)?;
    steps.exchange(&own[..bytes])?;
    fold_payloads(steps, operation, Src::from(&own[..bytes]))
}

/// Folds the payloads of all ranks into the result, where they lie; `own` is this rank's, which need not be in its line.
pub(in crate::algo::shared) fn fold_payloads(
    steps: &Steps<'_>,
    operation: &Operation<'_>,
    own: Src<'_>,
) -> Result<()> {
    let bytes = operation.bytes();
    if bytes > 0 {
        let theirs = |rank| steps.payload_in_place(rank, bytes);
        let payload = |rank| if rank == steps.rank() { own } else { theirs(rank) };
        Fold::of(operation)?.in_order(operation.recv, steps.size(), payload);
    }
    Ok(())
}
