//! Short vectors: every rank stages its vector in a slot, and folds the slots of the ranks before
//! it.

use super::inline;
use crate::algo::shared::one_step::{OneStep, Place};
use crate::algo::table::{ALWAYS, Algorithm, Body, SHORT};
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Scan, OpKind::Exscan],
    name: "eager",
    description: "payload in a slot, each rank folds those before it; one step, at most 4 KiB",
    fits: SHORT,
    pays: ALWAYS,
    ordered: true,
    body: Body::OneStep(&OneStep { place: Place::Slot, ..inline::STEP }),
};
