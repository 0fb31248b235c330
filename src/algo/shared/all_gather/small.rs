//! All-gather of small blocks, in one step: each rank publishes its block, and copies the blocks of
//! all ranks. The row `inline` uses control slots for blocks of at most 88 bytes; the row `eager`
//! uses data slots.

use crate::algo::CallArguments;
use crate::algo::row::{Algorithm, FITS_EAGER, FITS_INLINE};
use crate::algo::shared::one_step::{
    Contributions, OneStepAlgorithm, OneStepSenders, PayloadLocation, pack_vector,
};
use crate::base::error::Result;
use crate::transport::OpKind;

/// The row for payloads in control slots.
pub static INLINE: Algorithm = Algorithm {
    kinds: &[OpKind::AllGather, OpKind::AllGatherV],
    name: "inline",
    description: "blocks in control slots; at most 88 bytes each",
    fits: FITS_INLINE,
    ..Algorithm::one_step(&STEP)
};

/// The row for payloads in data slots.
pub static EAGER: Algorithm = Algorithm {
    kinds: INLINE.kinds,
    name: "eager",
    description: "blocks in data slots, each rank copies all; one step, at most 4 KiB each",
    fits: FITS_EAGER,
    ..Algorithm::one_step(&OneStepAlgorithm { location: PayloadLocation::DataSlot, ..STEP })
};

const STEP: OneStepAlgorithm = OneStepAlgorithm {
    senders: OneStepSenders::All,
    location: PayloadLocation::CtrlSlot,
    pack: pack_vector,
    reduce: copy_blocks,
};

fn copy_blocks(arguments: &CallArguments<'_>, contributions: &Contributions<'_>) -> Result<()> {
    for rank in 0..contributions.size() {
        let block = arguments.recv_block(rank);
        block.copy_from(contributions.payload_of(rank, block.len()));
    }
    Ok(())
}
