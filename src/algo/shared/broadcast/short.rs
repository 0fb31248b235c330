//! Short vectors: the root stages, the others read. The root does not wait for its readers but runs
//! ahead as far as its slots reach.

use super::inline;
use crate::algo::shared::one_step::{OneStep, Place};
use crate::algo::table::{ALWAYS, Algorithm, Body, SHORT};
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Broadcast],
    name: "eager",
    description: "payload in a slot; one step, at most 4 KiB",
    fits: SHORT,
    pays: ALWAYS,
    ordered: true,
    body: Body::OneStep(&OneStep { place: Place::Slot, ..inline::STEP }),
};
