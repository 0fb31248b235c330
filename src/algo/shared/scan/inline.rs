//! Scan of payloads that fit in a control slot: each rank folds the payloads of the ranks before
//! it.

use crate::algo::CallArguments;
use crate::algo::shared::one_step::{
    Contributions, OneStepAlgorithm, OneStepSenders, PayloadLocation, pack_contribution,
};
use crate::algo::table::{ALWAYS, Algorithm, AlgorithmBody, FITS_INLINE};
use crate::base::error::Result;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Scan, OpKind::Exscan],
    name: "inline",
    description: "payload in a control slot, each rank reduces those of the ranks before it; at most 88 bytes",
    fits: FITS_INLINE,
    pays: ALWAYS,
    ordered: true,
    body: AlgorithmBody::OneStep(&STEP),
};

pub(super) const STEP: OneStepAlgorithm = OneStepAlgorithm {
    senders: OneStepSenders::All,
    location: PayloadLocation::CtrlSlot,
    pack: pack_contribution,
    reduce: fold_prefix_payloads,
};

/// Folds the payloads of the ranks that this rank's result covers.
fn fold_prefix_payloads(
    arguments: &CallArguments<'_>,
    contributions: &Contributions<'_>,
) -> Result<()> {
    let (bytes, vectors) = (arguments.bytes(), arguments.kind.prefix_len(contributions.rank()));
    if bytes > 0 && vectors > 0 {
        contributions
            .fold_prefix(vectors, arguments.recv, |rank| contributions.payload_of(rank, bytes))?;
    }
    Ok(())
}
