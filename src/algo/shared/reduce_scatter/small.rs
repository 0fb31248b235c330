//! Reduce-scatter of small vectors, in one step: each rank publishes its whole vector, and folds
//! its own block of all vectors. The row `inline` uses control slots for vectors of at most 88
//! bytes; the row `eager` uses data slots.

use crate::algo::CallArguments;
use crate::algo::row::{ALL_FIT_EAGER, ALL_FIT_INLINE, Algorithm};
use crate::algo::shared::one_step::{
    Contributions, OneStepAlgorithm, OneStepSenders, PayloadLocation, pack_contribution,
};
use crate::base::error::Result;
use crate::transport::OpKind;

/// The row for payloads in control slots.
pub static INLINE: Algorithm = Algorithm {
    kinds: &[OpKind::ReduceScatter],
    name: "inline",
    description: "all blocks in a control slot, each rank reduces its own; at most 88 bytes in total",
    fits: ALL_FIT_INLINE,
    ..Algorithm::one_step(&STEP)
};

/// The row for payloads in data slots.
pub static EAGER: Algorithm = Algorithm {
    kinds: INLINE.kinds,
    name: "eager",
    description: "all blocks in a data slot, each rank reduces its own; one step, at most 4 KiB in total",
    fits: ALL_FIT_EAGER,
    ..Algorithm::one_step(&OneStepAlgorithm { location: PayloadLocation::DataSlot, ..STEP })
};

const STEP: OneStepAlgorithm = OneStepAlgorithm {
    senders: OneStepSenders::All,
    location: PayloadLocation::CtrlSlot,
    pack: pack_contribution,
    reduce: fold_own_block,
};

fn fold_own_block(arguments: &CallArguments<'_>, contributions: &Contributions<'_>) -> Result<()> {
    let (block_bytes, size) = (arguments.bytes(), contributions.size());
    if block_bytes > 0 {
        let block = |rank| {
            contributions
                .payload_of(rank, block_bytes * size)
                .slice(block_bytes * contributions.rank(), block_bytes)
        };
        contributions.fold(arguments.recv, block)?;
    }
    Ok(())
}
