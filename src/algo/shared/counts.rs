//! Counts that no more than two ranks have been told: they are published first, checked by those whom they concern, and
//! tell everybody how many rounds there are.
//!
//! Every rank publishes some, waits for those of all others, and takes the longest: so all take the same number of
//! steps, whatever each of them knew.

use super::steps::Steps;
use crate::algo::Operation;
use crate::algo::conflict::Conflict;
use crate::base::buffer::{Dst, Src};
use crate::base::error::Result;
use crate::base::ids::Rank;
use crate::kernel;
use crate::transport::Extent;

/// The bytes of one count.
const WORD: usize = size_of::<u64>();

/// The longest block, which says how often everybody goes round: known beforehand, or by what ranks publish.
pub(super) fn longest(
    steps: &mut Steps<'_>,
    operation: &Operation<'_>,
    publish: impl FnOnce(&mut Steps<'_>) -> Result<u64>,
) -> Result<usize> {
    match operation.descriptor.extent {
        Extent::Pairwise => Ok(usize::try_from(publish(steps)?).unwrap_or(usize::MAX)),
        Extent::Count(_) | Extent::Counts { .. } => Ok(operation.bytes()),
    }
}

/// Everybody has one count: `mine` is this rank's, in bytes. `check` is given every rank's.
pub(super) fn one_each(
    steps: &mut Steps<'_>,
    mine: usize,
    check: impl Fn(&Steps<'_>, Rank, u64) -> Result<()>,
) -> Result<u64> {
    let mine = mine as u64;
    steps.publish(&mine.to_le_bytes())?;
    check(steps, steps.rank(), mine)?;
    let mut longest = mine;
    for rank in steps.others() {
        steps.await_rank(rank)?;
        let theirs = payload(steps, rank);
        check(steps, rank, theirs)?;
        longest = longest.max(theirs);
    }
    Ok(longest)
}

/// Everybody has one count for each rank: `mine` are this rank's, in bytes. `check` is given what every rank has for
/// this one.
pub(super) fn one_for_each(
    steps: &mut Steps<'_>,
    mine: impl Fn(Rank) -> usize,
    check: impl Fn(&Steps<'_>, Rank, u64) -> Result<()>,
) -> Result<u64> {
    let (rank, size) = (steps.rank(), steps.size());
    let ours = (0..size).map(&mine).max().unwrap_or(0) as u64;
    let mut longest = ours;
    check(steps, rank, mine(rank) as u64)?;
    // A slot may be shorter than the row.
    let most = steps.slot_bytes() / WORD;
    for first in (0..size).step_by(most) {
        let slot = steps.next_slot()?;
        for (place, peer) in (first..size.min(first + most)).enumerate() {
            let count = (mine(peer) as u64).to_le_bytes();
            kernel::copy(slot.slice(place * WORD, WORD), Src::from(&count[..]));
        }
        steps.publish(&ours.to_le_bytes())?;
        for peer in steps.others() {
            steps.await_rank(peer)?;
            longest = longest.max(payload(steps, peer));
            if (first..first + most).contains(&rank) {
                let mut count = [0; WORD];
                let from = steps.slot(peer).slice((rank - first) * WORD, WORD);
                kernel::copy(Dst::from(&mut count[..]), from);
                check(steps, peer, u64::from_le_bytes(count))?;
            }
        }
    }
    Ok(longest)
}

/// Fails the group where one rank sends what another does not expect; one of them is this one.
pub(super) fn agree(
    steps: &Steps<'_>,
    (from, sent): (Rank, u64),
    (to, expected): (Rank, u64),
) -> Result<()> {
    if sent == expected {
        return Ok(());
    }
    let other = if from == steps.rank() { to } else { from };
    let conflict = Conflict { from: steps.peer(from), sent, to: steps.peer(to), expected };
    Err(steps.fail(conflict.error(steps.descriptor(), steps.peer(other))))
}

fn payload(steps: &Steps<'_>, rank: Rank) -> u64 {
    let mut word = [0; WORD];
    steps.payload(rank, &mut word);
    u64::from_le_bytes(word)
}
