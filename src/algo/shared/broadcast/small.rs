//! Broadcast of small vectors, in one step: the root publishes the vector, and the other ranks read
//! it. The row `inline` uses the control slot for vectors of at most 88 bytes; the row `eager` uses
//! the data slot. The root does not wait for its readers. It may run ahead with further operations
//! until all its slots contain data that a rank has not read.

use crate::algo::CallArguments;
use crate::algo::row::{Algorithm, FITS_EAGER, FITS_INLINE};
use crate::algo::shared::one_step::{
    Contributions, OneStepAlgorithm, OneStepSenders, PayloadLocation, pack_vector,
};
use crate::base::error::Result;
use crate::transport::OpKind;

/// The row for payloads in control slots.
pub static INLINE: Algorithm = Algorithm {
    kinds: &[OpKind::Broadcast],
    name: "inline",
    description: "payload in a control slot; at most 88 bytes",
    fits: FITS_INLINE,
    ..Algorithm::one_step(&STEP)
};

/// The row for payloads in data slots.
pub static EAGER: Algorithm = Algorithm {
    kinds: INLINE.kinds,
    name: "eager",
    description: "payload in a data slot; one step, at most 4 KiB",
    fits: FITS_EAGER,
    ..Algorithm::one_step(&OneStepAlgorithm { location: PayloadLocation::DataSlot, ..STEP })
};

const STEP: OneStepAlgorithm = OneStepAlgorithm {
    senders: OneStepSenders::Root,
    location: PayloadLocation::CtrlSlot,
    pack: pack_vector,
    reduce: copy_vector,
};

fn copy_vector(arguments: &CallArguments<'_>, contributions: &Contributions<'_>) -> Result<()> {
    arguments.recv.copy_from(contributions.payload_of(arguments.root()?, arguments.recv.len()));
    Ok(())
}
