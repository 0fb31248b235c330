//! Broadcast of vectors that fit in a control slot: the root publishes, the other ranks read. The
//! root does not wait for its readers but runs ahead until its control slots are full.

use crate::algo::CallArguments;
use crate::algo::shared::one_step::{
    Contributions, OneStepAlgorithm, OneStepSenders, PayloadLocation, pack_vector,
};
use crate::algo::table::{ALWAYS, Algorithm, AlgorithmBody, FITS_INLINE};
use crate::base::error::Result;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Broadcast],
    name: "inline",
    description: "payload in a control slot; at most 88 bytes",
    fits: FITS_INLINE,
    pays: ALWAYS,
    ordered: true,
    body: AlgorithmBody::OneStep(&STEP),
};

pub(super) const STEP: OneStepAlgorithm = OneStepAlgorithm {
    senders: OneStepSenders::Root,
    location: PayloadLocation::CtrlSlot,
    pack: pack_vector,
    reduce: copy_vector,
};

fn copy_vector(arguments: &CallArguments<'_>, contributions: &Contributions<'_>) -> Result<()> {
    arguments.recv.copy_from(contributions.payload_of(arguments.root()?, arguments.recv.len()));
    Ok(())
}
