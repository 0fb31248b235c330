//! All-reduce of small vectors, in one step: each rank publishes its vector, and folds the vectors
//! of all ranks. The row `inline` uses control slots for vectors of at most 88 bytes; the row
//! `eager` uses data slots.

use crate::algo::CallArguments;
use crate::algo::row::{Algorithm, FITS_EAGER, FITS_INLINE};
use crate::algo::shared::one_step::{
    Contributions, OneStepAlgorithm, OneStepSenders, PayloadLocation, pack_contribution,
};
use crate::base::error::Result;
use crate::transport::OpKind;

/// The row for payloads in control slots.
pub static INLINE: Algorithm = Algorithm {
    kinds: &[OpKind::AllReduce],
    name: "inline",
    description: "payload in a control slot, each rank reduces all; at most 88 bytes",
    fits: FITS_INLINE,
    ..Algorithm::one_step(&STEP)
};

/// The row for payloads in data slots.
pub static EAGER: Algorithm = Algorithm {
    kinds: INLINE.kinds,
    name: "eager",
    description: "payload in a data slot, each rank reduces all; one step, at most 4 KiB",
    fits: FITS_EAGER,
    ..Algorithm::one_step(&OneStepAlgorithm { location: PayloadLocation::DataSlot, ..STEP })
};

const STEP: OneStepAlgorithm = OneStepAlgorithm {
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
