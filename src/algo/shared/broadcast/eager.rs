//! Broadcast of short vectors: the root stages its vector in a data slot, the other ranks read it.
//! The root does not wait for its readers but runs ahead until its data slots are full.

use super::inline;
use crate::algo::shared::one_step::{OneStepAlgorithm, PayloadLocation};
use crate::algo::table::{ALWAYS, Algorithm, AlgorithmBody, FITS_EAGER};
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Broadcast],
    name: "eager",
    description: "payload in a data slot; one step, at most 4 KiB",
    fits: FITS_EAGER,
    pays: ALWAYS,
    ordered: true,
    body: AlgorithmBody::OneStep(&OneStepAlgorithm {
        location: PayloadLocation::DataSlot,
        ..inline::STEP
    }),
};
