//! Counts that no more than two ranks have been told: they are published first, checked by those
//! whom they concern, and tell everybody how many rounds there are.
//!
//! Every rank publishes some, waits for those of all others, and takes the longest: so all take the
//! same number of steps, whatever each of them knew. What a peer has published is read once, is
//! refused where no memory could be so long, and then says only how many steps there are: what this
//! rank reads and writes is cut by its own counts.

use super::steps::Steps;
use crate::algo::Operation;
use crate::algo::conflict::Conflict;
use crate::base::buffer::{Dst, Src};
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use crate::kernel;
use crate::transport::Extent;

/// The bytes of one count.
const WORD: usize = size_of::<u64>();

/// The longest block, which says how often everybody goes round: known beforehand, or by what ranks
/// publish.
pub(super) fn longest(
    steps: &mut Steps<'_>,
    operation: &Operation<'_>,
    publish: impl FnOnce(&mut Steps<'_>) -> Result<usize>,
) -> Result<usize> {
    match operation.descriptor.extent {
        Extent::Pairwise => publish(steps),
        Extent::Count(_) | Extent::Counts { .. } | Extent::Lengths | Extent::Operator => {
            Ok(operation.bytes())
        }
    }
}

/// Everybody has one count: `mine` is this rank's, in bytes. `check` is given every rank's.
pub(super) fn one_each(
    steps: &mut Steps<'_>,
    mine: usize,
    check: impl Fn(&Steps<'_>, Rank, u64) -> Result<()>,
) -> Result<usize> {
    steps.publish(&(mine as u64).to_le_bytes())?;
    check(steps, steps.rank(), mine as u64)?;
    let mut longest = mine;
    for rank in steps.others() {
        steps.await_rank(rank)?;
        let theirs = length(steps, rank)?;
        check(steps, rank, theirs as u64)?;
        longest = longest.max(theirs);
    }
    Ok(longest)
}

/// Everybody has one count for each rank: `mine` are this rank's, in bytes. `check` is given what
/// every rank has for this one.
pub(super) fn one_for_each(
    steps: &mut Steps<'_>,
    mine: impl Fn(Rank) -> usize,
    check: impl Fn(&Steps<'_>, Rank, u64) -> Result<()>,
) -> Result<usize> {
    let (rank, size) = (steps.rank(), steps.size());
    debug_assert!(size * WORD <= steps.slot_bytes(), "a slot holds an element for each rank");
    let ours = (0..size).map(&mine).max().unwrap_or(0);
    let slot = steps.next_slot()?;
    for peer in 0..size {
        let count = (mine(peer) as u64).to_le_bytes();
        kernel::copy(slot.slice(peer * WORD, WORD), Src::from(&count[..]));
    }
    steps.publish(&(ours as u64).to_le_bytes())?;
    check(steps, rank, mine(rank) as u64)?;
    let mut longest = ours;
    for peer in steps.others() {
        steps.await_rank(peer)?;
        longest = longest.max(length(steps, peer)?);
        let mut count = [0; WORD];
        kernel::copy(Dst::from(&mut count[..]), steps.slot(peer).slice(rank * WORD, WORD));
        check(steps, peer, u64::from_le_bytes(count))?;
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

/// What a rank has published.
fn length(steps: &Steps<'_>, rank: Rank) -> Result<usize> {
    let mut word = [0; WORD];
    steps.payload(rank, &mut word);
    let length = u64::from_le_bytes(word);
    possible(length).ok_or_else(|| {
        let peer = steps.peer(rank);
        let message = format!(
            "{peer} published a block of {length} bytes, which no memory holds: what ranks share with it has been \
             overwritten"
        );
        steps.fail(Error::internal(message).with_culprit(peer.rank))
    })
}

/// A length that some memory could have.
fn possible(length: u64) -> Option<usize> {
    isize::try_from(length).ok().map(isize::unsigned_abs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_beyond_the_address_space_are_none() {
        let most = isize::MAX.unsigned_abs();
        for length in [0, 1, most] {
            assert_eq!(possible(length as u64), Some(length));
        }
        assert_eq!((possible(most as u64 + 1), possible(u64::MAX)), (None, None));
    }
}
