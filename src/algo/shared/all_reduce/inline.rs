//! Payloads that fit beside the step number: one cache line from each rank, one hop.

use crate::algo::Operation;
use crate::algo::fold::{FEW, Fold, contribute};
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
    steps.publish(&own[..bytes])?;
    steps.await_all()?;
    fold_payloads(steps, operation, &own)
}

/// Folds the payloads of all ranks into the result; `own` is this rank's.
pub(in crate::algo::shared) fn fold_payloads(
    steps: &Steps<'_>,
    operation: &Operation<'_>,
    own: &[u8; INLINE_BYTES],
) -> Result<()> {
    let bytes = operation.bytes();
    if bytes == 0 {
        return Ok(());
    }
    let mut few = [[0; INLINE_BYTES]; FEW];
    let mut many = Vec::new();
    let payloads = match few.get_mut(..steps.size()) {
        Some(few) => few,
        None => {
            many.resize(steps.size(), [0; INLINE_BYTES]);
            many.as_mut_slice()
        }
    };
    payloads[steps.rank()] = *own;
    steps.others().for_each(|rank| steps.payload(rank, &mut payloads[rank][..bytes]));
    Fold::of(operation)?
        .in_order(operation.recv, steps.size(), |rank| Src::from(&payloads[rank][..bytes]));
    Ok(())
}
