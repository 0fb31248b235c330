//! Scan and exscan of small vectors, in one step: each rank publishes its vector, and folds the
//! vectors of the ranks before it. For a scan, it also folds its own vector. The row `inline` uses
//! control slots for vectors of at most 88 bytes; the row `eager` uses data slots.

use crate::algo::CallArguments;
use crate::algo::row::{Algorithm, FITS_EAGER, FITS_INLINE};
use crate::algo::shared::one_step::{
    Contributions, OneStepAlgorithm, OneStepSenders, PayloadLocation, pack_contribution,
};
use crate::base::error::Result;
use crate::transport::OpKind;

/// The row for payloads in control slots.
pub static INLINE: Algorithm = Algorithm {
    kinds: &[OpKind::Scan, OpKind::Exscan],
    name: "inline",
    description: "payload in a control slot, each rank reduces those of the ranks before it; at most 88 bytes",
    fits: FITS_INLINE,
    ..Algorithm::one_step(&STEP)
};

/// The row for payloads in data slots.
pub static EAGER: Algorithm = Algorithm {
    kinds: INLINE.kinds,
    name: "eager",
    description: "payload in a data slot, each rank reduces those of the ranks before it; one step, at most 4 KiB",
    fits: FITS_EAGER,
    ..Algorithm::one_step(&OneStepAlgorithm { location: PayloadLocation::DataSlot, ..STEP })
};

const STEP: OneStepAlgorithm = OneStepAlgorithm {
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
