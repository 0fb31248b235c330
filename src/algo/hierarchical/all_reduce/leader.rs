//! Small vectors: the leader of each node folds those of its node, and all-reduces the result with
//! the other leaders.

use super::between;
use crate::algo::Operation;
use crate::algo::fold::{Fold, contribute_staged};
use crate::algo::hierarchical::Levels;
use crate::algo::pattern::slices::chunks;
use crate::algo::select::Shape;
use crate::algo::table::{ALWAYS, Algorithm, Body};
use crate::base::error::Result;
use crate::kernel::{self, Stager};
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllReduce],
    name: "two_level",
    description: "one rank of each node folds for its node and exchanges messages with the others",
    fits: ALWAYS,
    pays,
    ordered: false,
    body: Body::Hierarchical(run),
};

/// Up to which size one rank of each node is enough: more of them share the work, for two hops more
/// inside.
fn pays(bytes: usize, shape: &Shape) -> bool {
    shape.smallest == 1 || bytes <= 32 << 10
}

/// A chunk at a time.
///
/// # Errors
/// As [`crate::algo::message::Exchange::wait`].
pub fn run(levels: &mut Levels<'_>, operation: &Operation<'_>) -> Result<()> {
    let (size, fold) = (levels.steps.size(), Fold::partial(operation)?);
    let inside = Fold::inside(operation, levels.nodes.ranks())?;
    let leaders = levels.keepers(0);
    let mut stager = Stager::of(operation.bytes());
    for chunk in chunks(operation.bytes(), levels.steps.slot_bytes()) {
        let (start, len) = (chunk.start, chunk.len());
        let result = operation.recv.slice(start, len);
        let own = levels.steps.next_slot()?.slice(0, len);
        contribute_staged(operation, &mut stager, own, operation.send.slice(start, len))?;
        levels.steps.publish(&[])?;
        if levels.steps.rank() != 0 {
            levels.steps.note()?;
            levels.steps.await_rank(0)?;
            kernel::copy(result, levels.steps.slot(0).slice(0, len));
            continue;
        }
        levels.steps.await_all()?;
        inside.in_order(result, size, |rank| levels.steps.slot(rank).slice(0, len));
        between(levels, &leaders, fold, operation, result)?;
        kernel::stage(levels.steps.next_slot()?.slice(0, len), result.as_src());
        levels.steps.give(&[])?;
    }
    Ok(())
}
