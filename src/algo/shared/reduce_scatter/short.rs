//! Short vectors: everybody stages the whole in a slot, and folds its own block.

use super::inline;
use crate::algo::shared::one_step::{OneStep, Place};
use crate::algo::table::{ALWAYS, Algorithm, Body, SHORT_IN_ALL};
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::ReduceScatter],
    name: "eager",
    description: "all blocks in a slot, everybody folds its own; one step, at most 4 KiB in all",
    fits: SHORT_IN_ALL,
    pays: ALWAYS,
    ordered: true,
    body: Body::OneStep(&OneStep { place: Place::Slot, ..inline::STEP }),
};
