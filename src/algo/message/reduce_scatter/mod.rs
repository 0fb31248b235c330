//! Reduce-scatter over messages: each member gets its block of the fold of all.

pub mod ordered;
pub mod pairwise;
pub mod ring;

use super::{Call, SEGMENT, Team};
use crate::algo::Operation;
use crate::algo::fold::{Fold, changes_parts, contribute_part, finish};
use crate::algo::pattern::slices::{chunks, clipped};
use crate::base::buffer::{Dst, Src};
use crate::base::error::Result;

/// Works through the blocks a chunk of each at a time; `one` is given this rank's part of every
/// block's chunk, where the result goes, and scratch memory for three chunks.
fn by_and_by(
    call: &mut Call<'_>,
    team: Team<'_>,
    operation: &Operation<'_>,
    one: impl for<'d> Fn(&mut Call<'_>, Fold, &dyn Fn(usize) -> Src<'d>, Dst<'d>, Dst<'d>) -> Result<()>,
) -> Result<()> {
    let (size, bytes, fold) = (team.size(), operation.bytes(), Fold::partial(operation)?);
    // What is changed needs room for all blocks.
    let scales = changes_parts(operation)?;
    let most = if scales { (4 * SEGMENT / size).next_multiple_of(64) } else { SEGMENT };
    let scaled = if scales { size * most.min(bytes) } else { 0 };
    let mut scratch = call.scratch(3 * most.min(bytes) + scaled)?;
    let memory = Dst::from(scratch.as_mut_slice());
    let (scaled, memory) = (memory.slice(0, scaled), memory.slice(scaled, memory.len() - scaled));
    for chunk in chunks(bytes, most) {
        let len = chunk.len();
        let part = |rank: usize| {
            let block = operation.send_block(rank);
            let part = clipped(&chunk, block.len());
            block.slice(part.start, part.len())
        };
        if scales {
            for rank in 0..size {
                let part = part(rank);
                contribute_part(operation, scaled.slice(rank * len, part.len()), part, size)?;
            }
        }
        let give = |rank: usize| match part(rank) {
            part if scales => scaled.as_src().slice(rank * len, part.len()),
            part => part,
        };
        let own = clipped(&chunk, operation.recv.len());
        one(call, fold, &give, operation.recv.slice(own.start, own.len()), memory)?;
    }
    call.keep(scratch);
    finish(operation, operation.recv, size)
}
