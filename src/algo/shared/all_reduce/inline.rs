//! Payloads that fit beside the step number: one cache line from each rank, one hop.

use crate::algo::Plain;
use crate::algo::fold::contribute_by;
use crate::algo::shared::lines::{Heard, Lines, Speakers};
use crate::algo::table::{ALWAYS, Algorithm, Body, FITS_A_LINE};
use crate::base::buffer::Dst;
use crate::base::error::Result;
use crate::transport::OpKind;
use crate::transport::line::INLINE_BYTES;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllReduce],
    name: "inline",
    description: "payload beside the step number, everybody folds all; at most 88 bytes",
    fits: FITS_A_LINE,
    pays: ALWAYS,
    ordered: true,
    body: Body::Lines(&Lines { speakers: Speakers::All, say: say_contribution, hear: fold }),
};

/// What this rank contributes.
pub(in crate::algo::shared) fn say_contribution(
    plain: &Plain<'_>,
    own: &mut [u8; INLINE_BYTES],
) -> Result<usize> {
    let len = plain.send.len();
    let into = Dst::from(&mut own[..len]);
    contribute_by(plain.op()?, (plain.dtype(), plain.factor), into, plain.send);
    Ok(len)
}

/// Folds the payloads of all ranks into the result, where they lie.
pub(in crate::algo::shared) fn fold(plain: &Plain<'_>, heard: &Heard<'_>) -> Result<()> {
    let bytes = plain.bytes();
    if bytes > 0 {
        heard.fold(plain.recv, |rank| heard.of(rank, bytes))?;
    }
    Ok(())
}
