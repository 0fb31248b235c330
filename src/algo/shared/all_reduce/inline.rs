//! All-reduce of payloads that fit in a control slot: each rank sends one cache line, in one hop.

use crate::algo::CallArguments;
use crate::algo::shared::one_step::{
    Contributions, OneStepAlgorithm, OneStepSenders, PayloadLocation, pack_contribution,
};
use crate::algo::table::{ALWAYS, Algorithm, AlgorithmBody, FITS_INLINE};
use crate::base::error::Result;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllReduce],
    name: "inline",
    description: "payload in a control slot, each rank reduces all; at most 88 bytes",
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

/// Folds the payloads of all ranks into the result, directly from the control slots or data slots.
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
