//! Vectors of which all blocks fit beside the step number: everybody publishes the whole, and folds
//! its own block.

use crate::algo::Plain;
use crate::algo::shared::one_step::{Heard, OneStep, Place, Speakers, say_contribution};
use crate::algo::table::{ALL_FIT_A_LINE, ALWAYS, Algorithm, Body};
use crate::base::error::Result;
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::ReduceScatter],
    name: "inline",
    description: "all blocks beside the step number, everybody folds its own; at most 88 bytes in all",
    fits: ALL_FIT_A_LINE,
    pays: ALWAYS,
    ordered: true,
    body: Body::OneStep(&STEP),
};

pub(super) const STEP: OneStep =
    OneStep { speakers: Speakers::All, place: Place::Line, say: say_contribution, hear: fold_own };

fn fold_own(plain: &Plain<'_>, heard: &Heard<'_>) -> Result<()> {
    let (own, size) = (plain.bytes(), heard.size());
    if own > 0 {
        let block = |rank| heard.of(rank, own * size).slice(own * heard.rank(), own);
        heard.fold(plain.recv, block)?;
    }
    Ok(())
}
