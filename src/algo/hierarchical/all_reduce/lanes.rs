//! Large vectors: in each node every keeper of a lane folds its slice of all vectors, all-reduces
//! it with the other keepers, and everybody gathers the slices.

use super::between;
use crate::algo::Operation;
use crate::algo::fold::{Fold, contribute_staged};
use crate::algo::hierarchical::{GRAIN, Levels, slice, within};
use crate::algo::pattern::slices::chunks;
use crate::algo::table::{ALWAYS, Algorithm, Body};
use crate::base::error::Result;
use crate::kernel::{self, Stager};
use crate::transport::OpKind;

/// Its row in the table.
pub static ROW: Algorithm = Algorithm {
    kinds: &[OpKind::AllReduce],
    name: "split_rail",
    description: "the ranks of each node fold a slice each and exchange messages about it",
    fits: ALWAYS,
    pays: ALWAYS,
    ordered: false,
    body: Body::Hierarchical(run),
};

/// Inside, between, inside.
///
/// # Errors
/// As [`crate::algo::message::Exchange::wait`].
pub fn run(levels: &mut Levels<'_>, operation: &Operation<'_>) -> Result<()> {
    scatter(levels, operation)?;
    if let Some(lane) = levels.lane() {
        let keepers = levels.keepers(lane);
        let mine = slice(operation.bytes(), levels.lanes(), lane);
        let result = operation.recv.slice(mine.start, mine.len());
        between(levels, &keepers, Fold::partial(operation)?, operation, result)?;
    }
    gather(levels, operation)
}

/// The longest slice, which says how often everybody goes round.
fn longest(bytes: usize, lanes: usize) -> usize {
    (0..lanes).map(|lane| slice(bytes, lanes, lane).len()).max().unwrap_or(0)
}

/// Every keeper folds its slice of the vectors of its node, in place.
fn scatter(levels: &mut Levels<'_>, operation: &Operation<'_>) -> Result<()> {
    let (bytes, lanes) = (operation.bytes(), levels.lanes());
    let fold = Fold::inside(operation, levels.nodes.ranks())?;
    let share = levels.steps.slot_bytes() / lanes / GRAIN * GRAIN;
    for part in chunks(longest(bytes, lanes), share) {
        let slot = levels.steps.next_slot()?;
        for lane in 0..lanes {
            let piece = within(&slice(bytes, lanes, lane), &part);
            let src = operation.send.slice(piece.start, piece.len());
            let mut stager = Stager::of(piece.len());
            contribute_staged(operation, &mut stager, slot.slice(lane * share, piece.len()), src)?;
        }
        levels.steps.publish(&[])?;
        levels.steps.await_all()?;
        if let Some(lane) = levels.lane() {
            let piece = within(&slice(bytes, lanes, lane), &part);
            let own = operation.recv.slice(piece.start, piece.len());
            fold.in_order(own, levels.steps.size(), |rank| {
                levels.steps.slot(rank).slice(lane * share, own.len())
            });
        }
    }
    Ok(())
}

/// Everybody gets the slices from their keepers.
fn gather(levels: &mut Levels<'_>, operation: &Operation<'_>) -> Result<()> {
    let (bytes, lanes, mine) = (operation.bytes(), levels.lanes(), levels.lane());
    for part in chunks(longest(bytes, lanes), levels.steps.slot_bytes()) {
        match mine {
            Some(lane) => {
                let piece = within(&slice(bytes, lanes, lane), &part);
                let slot = levels.steps.next_slot()?.slice(0, piece.len());
                kernel::stage(slot, operation.recv.as_src().slice(piece.start, piece.len()));
                levels.steps.publish(&[])?;
            }
            None => levels.steps.note()?,
        }
        for lane in (0..lanes).filter(|&lane| Some(lane) != mine) {
            let piece = within(&slice(bytes, lanes, lane), &part);
            levels.steps.await_rank(lane)?;
            let from = levels.steps.slot(lane).slice(0, piece.len());
            kernel::copy(operation.recv.slice(piece.start, piece.len()), from);
        }
    }
    Ok(())
}
