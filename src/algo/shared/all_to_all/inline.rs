//! Blocks that all fit beside the step number: everybody publishes all that it has, and copies what
//! is for it.

use crate::algo::Plain;
use crate::algo::shared::one_step::{Heard, OneStep, Place, Speakers, say_vector};
use crate::algo::table::{ALL_FIT_A_LINE, ALWAYS, Algorithm, Body};
use crate::base::error::Result;
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllToAll],
    name: "inline",
    description: "all blocks beside the step number; at most 88 bytes in all",
    fits: ALL_FIT_A_LINE,
    pays: ALWAYS,
    ordered: true,
    body: Body::OneStep(&STEP),
};

pub(super) const STEP: OneStep =
    OneStep { speakers: Speakers::All, place: Place::Line, say: say_vector, hear: take_own };

fn take_own(plain: &Plain<'_>, heard: &Heard<'_>) -> Result<()> {
    let (own, size) = (plain.bytes(), heard.size());
    for rank in 0..size {
        let block = heard.of(rank, own * size).slice(own * heard.rank(), own);
        plain.recv_block(rank).copy_from(block);
    }
    Ok(())
}
