//! Barrier: each rank publishes its control slot, and reads the control slots of all ranks.

use crate::algo::row::Algorithm;
use crate::algo::shared::one_step::{OneStepAlgorithm, OneStepSenders, PayloadLocation};
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Barrier],
    name: "flags",
    description: "each rank reads the control slots of all ranks; one hop",
    ..Algorithm::one_step(&OneStepAlgorithm {
        senders: OneStepSenders::All,
        location: PayloadLocation::CtrlSlot,
        pack: |_, _| Ok(()),
        reduce: |_, _| Ok(()),
    })
};
