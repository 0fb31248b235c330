//! Reduce of payloads that fit in a control slot: the root reads the control slots of all ranks.

use crate::algo::shared::all_reduce::inline::fold_payloads;
use crate::algo::shared::one_step::{
    OneStepAlgorithm, OneStepSenders, PayloadLocation, pack_contribution,
};
use crate::algo::table::{ALWAYS, Algorithm, AlgorithmBody, FITS_INLINE};
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Reduce],
    name: "inline",
    description: "payload in a control slot, the root reduces; at most 88 bytes",
    fits: FITS_INLINE,
    pays: ALWAYS,
    ordered: true,
    body: AlgorithmBody::OneStep(&STEP),
};

pub(super) const STEP: OneStepAlgorithm = OneStepAlgorithm {
    senders: OneStepSenders::Others,
    location: PayloadLocation::CtrlSlot,
    pack: pack_contribution,
    reduce: fold_payloads,
};
