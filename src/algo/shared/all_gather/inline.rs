//! All-gather of blocks that fit in a control slot: each rank publishes its block, and copies the
//! blocks of all ranks.

use crate::algo::CallArguments;
use crate::algo::shared::one_step::{
    Contributions, OneStepAlgorithm, OneStepSenders, PayloadLocation, pack_vector,
};
use crate::algo::table::{ALWAYS, Algorithm, AlgorithmBody, FITS_INLINE};
use crate::base::error::Result;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllGather, OpKind::AllGatherV],
    name: "inline",
    description: "blocks in control slots; at most 88 bytes each",
    fits: FITS_INLINE,
    pays: ALWAYS,
    ordered: true,
    body: AlgorithmBody::OneStep(&STEP),
};

pub(super) const STEP: OneStepAlgorithm = OneStepAlgorithm {
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
