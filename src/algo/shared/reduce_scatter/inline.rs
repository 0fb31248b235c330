//! Reduce-scatter of vectors that fit in a control slot with all blocks: each rank publishes its
//! whole vector, and folds its own block.

use crate::algo::CallArguments;
use crate::algo::shared::one_step::{
    Contributions, OneStepAlgorithm, OneStepSenders, PayloadLocation, pack_contribution,
};
use crate::algo::table::{ALL_FIT_INLINE, ALWAYS, Algorithm, AlgorithmBody};
use crate::base::error::Result;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::ReduceScatter],
    name: "inline",
    description: "all blocks in a control slot, each rank reduces its own; at most 88 bytes in total",
    fits: ALL_FIT_INLINE,
    pays: ALWAYS,
    ordered: true,
    body: AlgorithmBody::OneStep(&STEP),
};

pub(super) const STEP: OneStepAlgorithm = OneStepAlgorithm {
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
