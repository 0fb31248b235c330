//! Short blocks: everybody stages all that it has in a slot, and copies what is for it.

use super::inline;
use crate::algo::shared::one_step::{OneStepAlgorithm, PayloadLocation};
use crate::algo::table::{ALL_FIT_EAGER, ALWAYS, Algorithm, AlgorithmBody};
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllToAll],
    name: "eager",
    description: "all blocks in a slot; one step, at most 4 KiB in all",
    fits: ALL_FIT_EAGER,
    pays: ALWAYS,
    ordered: true,
    body: AlgorithmBody::OneStep(&OneStepAlgorithm {
        location: PayloadLocation::DataSlot,
        ..inline::STEP
    }),
};
