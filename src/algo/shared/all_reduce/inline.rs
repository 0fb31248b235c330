//! Payloads that fit beside the step number: one cache line from each rank, one hop.

use crate::algo::CallArguments;
use crate::algo::shared::one_step::{
    Contributions, OneStepAlgorithm, OneStepSenders, PayloadLocation, pack_contribution,
};
use crate::algo::table::{ALWAYS, Algorithm, AlgorithmBody, FITS_INLINE};
use crate::base::error::Result;
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllReduce],
    name: "inline",
    description: "payload beside the step number, everybody folds all; at most 88 bytes",
    fits: FITS_INLINE,
    pays: ALWAYS,
    ordered: true,
    body: AlgorithmBody::OneStep(&STEP),
};

pub(super) const STEP: OneStepAlgorithm = OneStepAlgorithm {
    senders: OneStepSenders::All,
    location: PayloadLocation::CtrlSlot,
    pack: pack_contribution,
    reduce: fold_payloads,
};

/// Folds the payloads of all ranks into the result, where they lie.
pub(in crate::algo::shared) fn fold_payloads(
    arguments: &CallArguments<'_>,
    contributions: &Contributions<'_>,
) -> Result<()> {
    let bytes = arguments.bytes();
    if bytes > 0 {
        contributions.fold(arguments.recv, |rank| contributions.payload_of(rank, bytes))?;
    }
    Ok(())
}
