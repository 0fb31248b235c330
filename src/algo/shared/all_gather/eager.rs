//! All-gather of short blocks: each rank stages its block in a data slot, and copies the blocks of
//! all ranks.

use super::inline;
use crate::algo::shared::one_step::{OneStepAlgorithm, PayloadLocation};
use crate::algo::table::{ALWAYS, Algorithm, AlgorithmBody, FITS_EAGER};
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllGather, OpKind::AllGatherV],
    name: "eager",
    description: "blocks in data slots, each rank copies all; one step, at most 4 KiB each",
    fits: FITS_EAGER,
    pays: ALWAYS,
    ordered: true,
    body: AlgorithmBody::OneStep(&OneStepAlgorithm {
        location: PayloadLocation::DataSlot,
        ..inline::STEP
    }),
};
