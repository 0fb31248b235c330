//! Large blocks, written where they go, by the rank that had them last.

use super::{direct, staged};
use crate::algo::Operation;
use crate::algo::select::Shape;
use crate::algo::shared::steps::Steps;
use crate::algo::table::{Algorithm, Body, REACHED};
use crate::base::error::Result;
use crate::kernel;
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllToAll],
    name: "cma_write",
    description: "blocks written to the memory of their ranks; one hop",
    fits: REACHED,
    pays,
    ordered: true,
    body: Body::Shared(run),
};

/// For which blocks: among ranks that have no core each, by what all together move. Where the
/// kernel takes its time, those ranks gain by it too, which otherwise take a turn for each few
/// kilobytes of a slot.
fn pays(bytes: usize, shape: &Shape) -> bool {
    let moved = bytes.saturating_mul(shape.ranks).saturating_mul(shape.ranks);
    match (shape.pulls, shape.crowded) {
        (true, true) => (2 << 20..16 << 20).contains(&moved),
        (true, false) => (32 << 10..1 << 20).contains(&bytes),
        (false, true) => moved >= 8 << 20,
        (false, false) => false,
    }
}

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
    let mut everything = true;
    for rank in steps.others() {
        let (theirs, block) = (steps.exposed(rank)?, operation.send_block(rank));
        // All blocks have one length.
        everything = everything && steps.try_push(block, theirs, me * block.len())?;
    }
    kernel::copy_part(operation.recv.len(), operation.recv_block(me), operation.send_block(me));
    steps.close_tried(everything)
}
