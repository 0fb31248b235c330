//! Reduce-scatter of short vectors: each rank stages its whole vector in a data slot, and folds its
//! own block.

use super::inline;
use crate::algo::shared::one_step::{OneStepAlgorithm, PayloadLocation};
use crate::algo::table::{ALL_FIT_EAGER, ALWAYS, Algorithm, AlgorithmBody};
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::ReduceScatter],
    name: "eager",
    description: "all blocks in a data slot, each rank reduces its own; one step, at most 4 KiB in total",
    fits: ALL_FIT_EAGER,
    pays: ALWAYS,
    ordered: true,
    body: AlgorithmBody::OneStep(&OneStepAlgorithm {
        location: PayloadLocation::DataSlot,
        ..inline::STEP
    }),
};
