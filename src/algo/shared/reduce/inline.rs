//! Payloads that fit beside the step number: the root reads everybody's line.

use crate::algo::shared::all_reduce::inline::fold;
use crate::algo::shared::one_step::{OneStep, Place, Speakers, say_contribution};
use crate::algo::table::{ALWAYS, Algorithm, Body, FITS_A_LINE};
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Reduce],
    name: "inline",
    description: "payload beside the step number, the root folds; at most 88 bytes",
    fits: FITS_A_LINE,
    pays: ALWAYS,
    ordered: true,
    body: Body::OneStep(&STEP),
};

pub(super) const STEP: OneStep =
    OneStep { speakers: Speakers::Others, place: Place::Line, say: say_contribution, hear: fold };
