//! Blocks of any size, a chunk of each at a time through the root's slots. The root does not wait
//! for its readers but runs ahead as far as its slots reach.

use crate::algo::Operation;
use crate::algo::pattern::slices::{chunks, clipped, part_for, share, spread};
use crate::algo::shared::counts::{agree, longest, one_each};
use crate::algo::shared::steps::Steps;
use crate::algo::table::{ALWAYS, Algorithm, Body};
use crate::base::error::Result;
use crate::kernel;
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::Scatter, OpKind::ScatterV],
    name: "staged",
    description: "through the root's slots, which hold a chunk for each rank",
    fits: ALWAYS,
    pays: ALWAYS,
    ordered: true,
    body: Body::Shared(run),
};

/// One step per chunk of the longest block.
///
/// # Errors
/// As [`Steps::await_all`], and `Mismatch` where a rank expects what the root does not send.
pub fn run(steps: &mut Steps<'_>, operation: &Operation<'_>) -> Result<()> {
    let (root, recv, me) = (operation.root()?, operation.recv, steps.rank());
    let longest = longest(steps, operation, |steps| {
        one_each(steps, recv.len(), |steps, rank, expected| match me == root {
            true => agree(steps, (root, operation.send_block(rank).len() as u64), (rank, expected)),
            false => Ok(()),
        })
    })?;
    let (size, others) = (steps.size(), (steps.size() - 1).max(1));
    let most = share(steps.slot_bytes(), others);
    for chunk in chunks(longest, most) {
        let each = spread(chunk.len(), most);
        let own = clipped(&chunk, recv.len());
        let place = recv.slice(own.start, own.len());
        if me != root {
            steps.note()?;
            steps.await_rank(root)?;
            let staged = steps.part(root, each * others);
            let part = staged.slice(part_for(me, root, size) * each, own.len());
            kernel::copy_part(recv.len(), place, part);
            steps.checkpoint();
            continue;
        }
        let slot = steps.next_part(each * others)?;
        for rank in steps.others() {
            let block = operation.send_block(rank);
            let part = clipped(&chunk, block.len());
            let from = block.slice(part.start, part.len());
            kernel::stage(slot.slice(part_for(rank, me, size) * each, part.len()), from);
        }
        steps.give(&[])?;
        let part = operation.send_block(root).slice(own.start, own.len());
        kernel::copy_part(recv.len(), place, part);
    }
    Ok(())
}
