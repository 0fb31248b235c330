//! All-to-all for the case that all blocks of a rank fit in a control slot: each rank publishes all
//! its blocks, and copies the blocks for it.

use crate::algo::CallArguments;
use crate::algo::shared::one_step::{
    Contributions, OneStepAlgorithm, OneStepSenders, PayloadLocation, pack_vector,
};
use crate::algo::table::{ALL_FIT_INLINE, ALWAYS, Algorithm, AlgorithmBody};
use crate::base::error::Result;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllToAll],
    name: "inline",
    description: "all blocks in a control slot; at most 88 bytes in total",
    fits: ALL_FIT_INLINE,
    pays: ALWAYS,
    ordered: true,
    body: AlgorithmBody::OneStep(&STEP),
};

pub(super) const STEP: OneStepAlgorithm = OneStepAlgorithm {
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
