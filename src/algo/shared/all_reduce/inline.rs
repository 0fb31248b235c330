//! Payloads that fit beside the step number: one cache line from each rank, one hop.

use crate::algo::Plain;
use crate::algo::shared::one_step::{Heard, OneStep, Place, Speakers, say_contribution};
use crate::algo::table::{ALWAYS, Algorithm, Body, FITS_A_LINE};
use crate::base::error::Result;
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllReduce],
    name: "inline",
    description: "payload beside the step number, everybody folds all; at most 88 bytes",
    fits: FITS_A_LINE,
    pays: ALWAYS,
    ordered: true,
    body: Body::OneStep(&STEP),
};

pub(super) const STEP: OneStep =
    OneStep { speakers: Speakers::All, place: Place::Line, say: say_contribution, hear: fold };

/// Folds the payloads of all ranks into the result, where they lie.
pub(in crate::algo::shared) fn fold(plain: &Plain<'_>, heard: &Heard<'_>) -> Result<()> {
    let bytes = plain.bytes();
    if bytes > 0 {
        heard.fold(plain.recv, |rank| heard.of(rank, bytes))?;
    }
    Ok(())
}
