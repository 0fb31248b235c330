//! Counts that no more than two ranks have been told: they are published first, checked by those
//! whom they concern, and tell everybody how many rounds there are.
//!
//! Every rank publishes some, waits for those of all others, and takes the longest: so all take the
//! same number of steps, whatever each of them knew. What a peer has published is read once, is
//! refused where no memory could be so long, and then says only how many steps there are: what this
//! rank reads and writes is cut by its own counts.

use super::sequencer::ShmSequencer;
use crate::algo::Operation;
use crate::algo::count_mismatch::CountMismatch;
use crate::base::buffer::{Dst, Src};
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use crate::kernel;
use crate::transport::CountSpec;

/// The bytes of one count.
const WORD: usize = size_of::<u64>();

/// The longest block, which says how often everybody goes round: known beforehand, or by what ranks
/// publish.
pub(super) fn longest_block(
    steps: &mut ShmSequencer<'_>,
    operation: &Operation<'_>,
    publish: impl FnOnce(&mut ShmSequencer<'_>) -> Result<usize>,
) -> Result<usize> {
    match operation.descriptor.count_spec {
        CountSpec::Pairwise => publish(steps),
        CountSpec::Count(_)
        | CountSpec::Counts { .. }
        | CountSpec::Lengths
        | CountSpec::Operator => Ok(operation.bytes()),
    }
}

/// Everybody has one count: `mine` is this rank's, in bytes. `check_failure` is given every rank's.
pub(super) fn exchange_block_length(
    steps: &mut ShmSequencer<'_>,
    mine: usize,
    check: impl Fn(&ShmSequencer<'_>, Rank, u64) -> Result<()>,
) -> Result<usize> {
    steps.publish(&(mine as u64).to_le_bytes())?;
    check(steps, steps.rank(), mine as u64)?;
    let mut longest = mine;
    for rank in steps.others() {
        steps.await_rank(rank)?;
        let peer_length = published_length(steps, rank)?;
        check(steps, rank, peer_length as u64)?;
        longest = longest.max(peer_length);
    }
    Ok(longest)
}

/// Everybody has one count for each rank: `mine` are this rank's, in bytes. `check_failure` is
/// given what every rank has for this one.
pub(super) fn exchange_block_lengths(
    steps: &mut ShmSequencer<'_>,
    mine: impl Fn(Rank) -> usize,
    check: impl Fn(&ShmSequencer<'_>, Rank, u64) -> Result<()>,
) -> Result<usize> {
    let (rank, size) = (steps.rank(), steps.size());
    debug_assert!(size * WORD <= steps.slot_bytes(), "a slot holds an element for each rank");
    let own_longest = (0..size).map(&mine).max().unwrap_or(0);
    let slot = steps.next_slot()?;
    for peer in 0..size {
        let count = (mine(peer) as u64).to_le_bytes();
        kernel::copy(slot.slice(peer * WORD, WORD), Src::from(&count[..]));
    }
    steps.publish(&(own_longest as u64).to_le_bytes())?;
    check(steps, rank, mine(rank) as u64)?;
    let mut longest = own_longest;
    for peer in steps.others() {
        steps.await_rank(peer)?;
        longest = longest.max(published_length(steps, peer)?);
        let mut count = [0; WORD];
        kernel::copy(Dst::from(&mut count[..]), steps.slot(peer).slice(rank * WORD, WORD));
        check(steps, peer, u64::from_le_bytes(count))?;
    }
    Ok(longest)
}

/// Fails the group where one rank sends what another does not expect; one of them is this one.
pub(super) fn check_counts(
    steps: &ShmSequencer<'_>,
    (from, sent): (Rank, u64),
    (to, expected): (Rank, u64),
) -> Result<()> {
    if sent == expected {
        return Ok(());
    }
    let other = if from == steps.rank() { to } else { from };
    let conflict = CountMismatch {
        sender: steps.peer(from),
        sent_bytes: sent,
        receiver: steps.peer(to),
        expected_bytes: expected,
    };
    Err(steps.fail(conflict.to_error(steps.descriptor(), steps.peer(other))))
}

/// What a rank has published.
fn published_length(steps: &ShmSequencer<'_>, rank: Rank) -> Result<usize> {
    let mut word = [0; WORD];
    steps.payload(rank, &mut word);
    let length = u64::from_le_bytes(word);
    addressable_length(length).ok_or_else(|| {
        let peer = steps.peer(rank);
        let message = format!(
            "{peer} published a block of {length} bytes, which no memory holds: what ranks share with it has been \
             overwritten"
        );
        steps.fail(Error::internal(message).with_culprit(peer.rank))
    })
}

/// A length that some memory could have.
fn addressable_length(length: u64) -> Option<usize> {
    isize::try_from(length).ok().map(isize::unsigned_abs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_beyond_the_address_space_are_rejected() {
        let most = isize::MAX.unsigned_abs();
        for length in [0, 1, most] {
            assert_eq!(addressable_length(length as u64), Some(length));
        }
        assert_eq!(
            (addressable_length(most as u64 + 1), addressable_length(u64::MAX)),
            (None, None)
        );
    }
}
