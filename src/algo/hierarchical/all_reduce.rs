//! All-reduce between nodes.

use super::{Levels, slice, within};
use crate::algo::Operation;
use crate::algo::fold::{Fold, contribute, finish};
use crate::algo::message::{Team, all_reduce};
use crate::algo::pattern::slices::chunks;
use crate::base::buffer::Dst;
use crate::base::error::Result;
use crate::base::ids::Rank;
use crate::kernel;

/// Small vectors: the leader of each node folds those of its node, and all-reduces the result with the other leaders.
///
/// # Errors
/// As [`crate::algo::message::Exchange::wait`], here and below.
pub fn leader(levels: &mut Levels<'_>, operation: &Operation<'_>) -> Result<()> {
    let (size, fold) = (levels.steps.size(), Fold::partial(operation)?);
    let inside = Fold::inside(operation, levels.nodes.ranks())?;
    let leaders = levels.keepers(0);
    for chunk in chunks(operation.bytes(), levels.steps.slot_bytes()) {
        let (start, len) = (chunk.start, chunk.len());
        let result = operation.recv.slice(start, len);
        let own = levels.steps.next_slot()?.slice(0, len);
        contribute(operation, own, operation.send.slice(start, len))?;
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
        kernel::copy(levels.steps.next_slot()?.slice(0, len), result.as_src());
        levels.steps.give(&[])?;
    }
    Ok(())
}

/// Large vectors: in each node every keeper of a lane folds its slice of all vectors, all-reduces it with the other
/// keepers, and everybody gathers the slices.
///
/// # Errors
/// As [`leader`].
pub fn lanes(levels: &mut Levels<'_>, operation: &Operation<'_>) -> Result<()> {
    scatter(levels, operation)?;
    if let Some(lane) = levels.lane() {
        let keepers = levels.keepers(lane);
        let mine = slice(operation.bytes(), levels.lanes(), lane);
        let result = operation.recv.slice(mine.start, mine.len());
        between(levels, &keepers, Fold::partial(operation)?, operation, result)?;
    }
    gather(levels, operation)
}

fn between(
    levels: &mut Levels<'_>,
    members: &[Rank],
    fold: Fold,
    operation: &Operation<'_>,
    data: Dst<'_>,
) -> Result<()> {
    let team = Team::of(members, levels.call.rank())?;
    all_reduce::best(data.len(), team.size())(&mut levels.call, team, fold, data)?;
    finish(operation, data, levels.nodes.ranks())
}

/// The longest slice, which says how often everybody goes round.
fn longest(bytes: usize, lanes: usize) -> usize {
    (0..lanes).map(|lane| slice(bytes, lanes, lane).len()).max().unwrap_or(0)
}

/// Every keeper folds its slice of the vectors of its node, in place.
fn scatter(levels: &mut Levels<'_>, operation: &Operation<'_>) -> Result<()> {
    let (bytes, lanes) = (operation.bytes(), levels.lanes());
    let fold = Fold::inside(operation, levels.nodes.ranks())?;
    let share = levels.steps.slot_bytes() / lanes / super::GRAIN * super::GRAIN;
    for part in chunks(longest(bytes, lanes), share) {
        let slot = levels.steps.next_slot()?;
        for lane in 0..lanes {
            let piece = within(&slice(bytes, lanes, lane), &part);
            let src = operation.send.slice(piece.start, piece.len());
            contribute(operation, slot.slice(lane * share, piece.len()), src)?;
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
                kernel::copy(slot, operation.recv.as_src().slice(piece.start, piece.len()));
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
