//! Everybody publishes, everybody reads all.

use crate::algo::shared::lines::{Lines, Speakers};
use crate::algo::table::{ALWAYS, Algorithm, Body};
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Barrier],
    name: "flags",
    description: "everybody reads everybody's line; one hop",
    fits: ALWAYS,
    pays: ALWAYS,
    ordered: true,
    body: Body::Lines(&Lines { speakers: Speakers::All, say: |_, _| Ok(0), hear: |_, _| Ok(()) }),
};
