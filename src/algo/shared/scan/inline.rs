//! Payloads that fit in the control line: every rank folds the lines of the ranks before it.

use crate::algo::Plain;
use crate::algo::shared::one_step::{Heard, OneStep, Place, Speakers, say_contribution};
use crate::algo::table::{ALWAYS, Algorithm, Body, FITS_A_LINE};
use crate::base::error::Result;
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Scan, OpKind::Exscan],
    name: "inline",
    description: "payload beside the step number, each rank folds those before it; at most 88 bytes",
    fits: FITS_A_LINE,
    pays: ALWAYS,
    ordered: true,
    body: Body::OneStep(&STEP),
};

pub(super) const STEP: OneStep =
    OneStep { speakers: Speakers::All, place: Place::Line, say: say_contribution, hear: fold };

/// Folds the payloads of the ranks that the result of this rank covers.
fn fold(plain: &Plain<'_>, heard: &Heard<'_>) -> Result<()> {
    let (bytes, vectors) = (plain.bytes(), plain.kind.prefix_len(heard.rank()));
    if bytes > 0 && vectors > 0 {
        heard.fold_first(vectors, plain.recv, |rank| heard.of(rank, bytes))?;
    }
    Ok(())
}
