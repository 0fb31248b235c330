//! Vectors that fit beside the step number: the root publishes, the others read. The root does not
//! wait for its readers but runs ahead as far as its lines reach.

use crate::algo::Plain;
use crate::algo::shared::one_step::{Heard, OneStep, Place, Speakers, say_vector};
use crate::algo::table::{ALWAYS, Algorithm, Body, FITS_A_LINE};
use crate::base::error::Result;
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Broadcast],
    name: "inline",
    description: "payload beside the step number; at most 88 bytes",
    fits: FITS_A_LINE,
    pays: ALWAYS,
    ordered: true,
    body: Body::OneStep(&STEP),
};

pub(super) const STEP: OneStep =
    OneStep { speakers: Speakers::Root, place: Place::Line, say: say_vector, hear: take };

fn take(plain: &Plain<'_>, heard: &Heard<'_>) -> Result<()> {
    plain.recv.copy_from(heard.of(plain.root()?, plain.recv.len()));
    Ok(())
}
