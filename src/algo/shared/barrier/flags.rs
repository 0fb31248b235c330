//! Everybody publishes, everybody reads all.

use crate::algo::shared::one_step::{OneStep, Place, Speakers};
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
    body: Body::OneStep(&OneStep {
        speakers: Speakers::All,
        place: Place::Line,
        say: |_, _| Ok(()),
        hear: |_, _| Ok(()),
    }),
};
