//! Reduce of short vectors: each rank stages its vector in a data slot, the root folds the vectors
//! of all ranks.

use super::inline;
use crate::algo::shared::one_step::{OneStepAlgorithm, PayloadLocation};
use crate::algo::table::{ALWAYS, Algorithm, AlgorithmBody, FITS_EAGER};
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Reduce],
    name: "eager",
    description: "payload in a data slot, the root reduces; one step, at most 4 KiB",
    fits: FITS_EAGER,
    pays: ALWAYS,
    ordered: true,
    body: AlgorithmBody::OneStep(&OneStepAlgorithm {
        location: PayloadLocation::DataSlot,
        ..inline::STEP
    }),
};
