//! Reduce of small vectors, in one step: each rank except the root publishes its vector, and the
//! root folds the vectors of all ranks. The row `inline` uses control slots for vectors of at most
//! 88 bytes; the row `eager` uses data slots.

use crate::algo::row::{Algorithm, FITS_EAGER, FITS_INLINE};
use crate::algo::shared::all_reduce::small::fold_payloads;
use crate::algo::shared::one_step::{
    OneStepAlgorithm, OneStepSenders, PayloadLocation, pack_contribution,
};
use crate::transport::OpKind;

/// The row for payloads in control slots.
pub static INLINE: Algorithm = Algorithm {
    kinds: &[OpKind::Reduce],
    name: "inline",
    description: "payload in a control slot, the root reduces; at most 88 bytes",
    fits: FITS_INLINE,
    ..Algorithm::one_step(&STEP)
};

/// The row for payloads in data slots.
pub static EAGER: Algorithm = Algorithm {
    kinds: INLINE.kinds,
    name: "eager",
    description: "payload in a data slot, the root reduces; one step, at most 4 KiB",
    fits: FITS_EAGER,
    ..Algorithm::one_step(&OneStepAlgorithm { location: PayloadLocation::DataSlot, ..STEP })
};

const STEP: OneStepAlgorithm = OneStepAlgorithm {
    senders: OneStepSenders::Others,
    location: PayloadLocation::CtrlSlot,
    pack: pack_contribution,
    reduce: fold_payloads,
};
