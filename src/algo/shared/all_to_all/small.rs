//! All-to-all of small blocks, in one step: each rank publishes all its blocks, and copies the
//! blocks that are for this rank. The row `inline` uses control slots if a rank's blocks have at
//! most 88 bytes together; the row `eager` uses data slots.

use crate::algo::CallArguments;
use crate::algo::row::{ALL_FIT_EAGER, ALL_FIT_INLINE, Algorithm};
use crate::algo::shared::one_step::{
    Contributions, OneStepAlgorithm, OneStepSenders, PayloadLocation, pack_vector,
};
use crate::base::error::Result;
use crate::transport::OpKind;

/// The row for payloads in control slots.
pub static INLINE: Algorithm = Algorithm {
    kinds: &[OpKind::AllToAll],
    name: "inline",
    description: "all blocks in a control slot; at most 88 bytes in total",
    fits: ALL_FIT_INLINE,
    ..Algorithm::one_step(&STEP)
};

/// The row for payloads in data slots.
pub static EAGER: Algorithm = Algorithm {
    kinds: INLINE.kinds,
    name: "eager",
    description: "all blocks in a data slot; one step, at most 4 KiB in total",
    fits: ALL_FIT_EAGER,
    ..Algorithm::one_step(&OneStepAlgorithm { location: PayloadLocation::DataSlot, ..STEP })
};

const STEP: OneStepAlgorithm = OneStepAlgorithm {
    senders: OneStepSenders::All,
    location: PayloadLocation::CtrlSlot,
    pack: pack_vector,
    reduce: copy_own_blocks,
};

fn copy_own_blocks(arguments: &CallArguments<'_>, contributions: &Contributions<'_>) -> Result<()> {
    let (block_bytes, size) = (arguments.bytes(), contributions.size());
    for rank in 0..size {
        let block = contributions
            .payload_of(rank, block_bytes * size)
            .slice(block_bytes * contributions.rank(), block_bytes);
        arguments.recv_block(rank).copy_from(block);
    }
    Ok(())
}
