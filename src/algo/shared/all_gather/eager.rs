//! Short blocks: everybody stages its block in a slot, everybody copies all blocks.

use super::inline;
use crate::algo::shared::one_step::{OneStepAlgorithm, PayloadLocation};
use crate::algo::table::{ALWAYS, Algorithm, AlgorithmBody, FITS_EAGER};
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllGather, OpKind::AllGatherV],
    name: "eager",
    description: "blocks in slots, everybody copies all; one step, at most 4 KiB each",
    fits: FITS_EAGER,
    pays: ALWAYS,
    ordered: true,
    body: AlgorithmBody::OneStep(&OneStepAlgorithm {
        location: PayloadLocation::DataSlot,
        ..inline::STEP
    }),
};
