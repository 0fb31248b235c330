//! Blocks that fit beside the step number: everybody publishes its block, everybody copies all
//! blocks.

use crate::algo::Plain;
use crate::algo::shared::one_step::{Heard, OneStep, Place, Speakers, say_vector};
use crate::algo::table::{ALWAYS, Algorithm, Body, FITS_A_LINE};
use crate::base::error::Result;
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllGather, OpKind::AllGatherV],
    name: "inline",
    description: "blocks beside the step number; at most 88 bytes each",
    fits: FITS_A_LINE,
    pays: ALWAYS,
    ordered: true,
    body: Body::OneStep(&STEP),
};

pub(super) const STEP: OneStep =
    OneStep { speakers: Speakers::All, place: Place::Line, say: say_vector, hear: gather };

fn gather(plain: &Plain<'_>, heard: &Heard<'_>) -> Result<()> {
    for rank in 0..heard.size() {
        let block = plain.recv_block(rank);
        block.copy_from(heard.of(rank, block.len()));
    }
    Ok(())
}
