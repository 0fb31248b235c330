//! Reduce up a binomial tree: each member folds the partial results of its children into its own
//! vector, and sends the result to its parent.

use crate::algo::fold::{Fold, copy_partial_contribution};
use crate::algo::message::{MessageOperation, SEGMENT_BYTES, Team};
use crate::algo::pattern::slices::chunks;
use crate::algo::pattern::tree::{TreePosition, binomial_position};
use crate::algo::row::Algorithm;
use crate::base::buffer::Dst;
use crate::base::error::Result;
use crate::transport::OpKind;

/// The row of this algorithm in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Reduce],
    name: "binomial",
    description: "messages up a binomial tree",
    ordered: false,
    ..Algorithm::message(run)
};

/// Runs the algorithm between all ranks, one segment at a time.
///
/// # Errors
/// As [`reduce_up_tree`].
pub fn run(call: &mut MessageOperation<'_>, team: Team<'_>) -> Result<()> {
    let operation = call.operation;
    let (root, fold) = (operation.root()?, Fold::partial(operation)?);
    let position = binomial_position(team.size(), root, team.own_position());
    let max_chunk = SEGMENT_BYTES.min(operation.bytes());
    let mut scratch = call.scratch(2 * max_chunk)?;
    let memory = Dst::from(scratch.as_mut_slice());
    for chunk in chunks(operation.bytes(), SEGMENT_BYTES) {
        let (start, len) = (chunk.start, chunk.len());
        let part = match position.parent {
            None => operation.recv.slice(start, len),
            Some(_) => memory.slice(max_chunk, len),
        };
        copy_partial_contribution(operation, part, operation.send.slice(start, len), team.size())?;
        reduce_up_tree(call, team, &position, fold, part, memory.slice(0, len))?;
    }
    call.return_scratch(scratch);
    Ok(())
}

/// Folds the buffers `part` of all members into the buffer `part` of the root. On the other
/// members, `part` has arbitrary contents afterwards. `scratch` has the same length as `part`.
///
/// # Errors
/// As [`crate::algo::message::MessageExchange::wait`].
pub fn reduce_up_tree(
    call: &mut MessageOperation<'_>,
    team: Team<'_>,
    position: &TreePosition,
    fold: Fold,
    part: Dst<'_>,
    scratch: Dst<'_>,
) -> Result<()> {
    let mut exchange = call.exchange(team);
    // The nearest child has the smallest subtree, so its result arrives first.
    for &child in position.children.iter().rev() {
        let received = exchange.receive(child, scratch);
        exchange.wait(received)?;
        fold.fold_two(part, part.as_src(), scratch.as_src());
    }
    if let Some(parent) = position.parent {
        exchange.send(parent, part.as_src());
    }
    exchange.finish()
}
