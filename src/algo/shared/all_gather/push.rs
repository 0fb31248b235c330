//! Large blocks, written where they go: each rank copies its own, which it had last itself, to all
//! others.

use super::{direct, staged};
use crate::algo::Operation;
use crate::algo::shared::steps::Steps;
use crate::algo::table::{Algorithm, Body, REACHED};
use crate::base::error::Result;
use crate::kernel;
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllGather],
    name: "cma_write",
    description: "blocks written to the memory of all ranks; one hop",
    fits: REACHED,
    // What is longer than a core's second cache holds, its owner does not have there any more.
    pays: |bytes, shape| shape.pulls && !shape.crowded && (128 << 10..1 << 20).contains(&bytes),
    ordered: true,
    body: Body::Shared(run),
};

/// Directly where it can be. Else two steps: where the blocks go, and that all are there.
///
/// # Errors
/// As [`Steps::await_all`].
pub fn run(steps: &mut Steps<'_>, operation: &Operation<'_>) -> Result<()> {
    if direct::run(steps, operation)? {
        return Ok(());
    }
    let given = give(steps, operation);
    if steps.or_withdraw(operation.recv, given)? { Ok(()) } else { staged::run(steps, operation) }
}

/// False where memory cannot be written.
fn give(steps: &mut Steps<'_>, operation: &Operation<'_>) -> Result<bool> {
    steps.expose_sent(operation)?;
    let me = steps.rank();
    let everything =
        steps.try_push_to_all(steps.others(), operation.send, me * operation.bytes())?;
    kernel::copy_part(operation.recv.len(), operation.recv_block(me), operation.send);
    steps.close_tried(everything)
}
