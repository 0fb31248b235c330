//! Short blocks: everybody stages all that it has in a slot, and copies what is for it.

use super::inline;
use crate::algo::shared::one_step::{OneStep, Place};
use crate::algo::table::{ALWAYS, Algorithm, Body, SHORT_IN_ALL};
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllToAll],
    name: "eager",
    description: "all blocks in a slot; one step, at most 4 KiB in all",
    fits: SHORT_IN_ALL,
    pays: ALWAYS,
    ordered: true,
    body: Body::OneStep(&OneStep { place: Place::Slot, ..inline::STEP }),
};
