//! Short vectors: everybody stages its vector in a slot, everybody folds all of them.

use super::inline;
use crate::algo::shared::one_step::{OneStep, Place};
use crate::algo::table::{ALWAYS, Algorithm, Body, SHORT};
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllReduce],
    name: "eager",
    description: "payload in a slot, everybody folds all; one step, at most 4 KiB",
    fits: SHORT,
    pays: ALWAYS,
    ordered: true,
    body: Body::OneStep(&OneStep { place: Place::Slot, ..inline::STEP }),
};
