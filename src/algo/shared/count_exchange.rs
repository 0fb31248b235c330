//! Exchange of counts at the start of an operation in which only the sender and the receiver of a
//! block know its count.
//!
//! Every rank publishes its counts in one step and waits for the counts of all other ranks. The
//! receiver of each count compares it with the count that it expects. Every rank also takes the
//! longest of all published counts, so that all ranks take the same number of further steps.
//!
//! A rank reads a peer's published length once, and rejects it if it exceeds the address space. The
//! length then determines only the number of steps; a rank limits its reads and writes by its own
//! counts.

use super::sequencer::ShmSequencer;
use crate::algo::Operation;
use crate::algo::mismatch_text::CountMismatch;
use crate::base::buffer::{Dst, Src};
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use crate::kernel;
use crate::transport::CountSpec;

/// The size of one count in bytes.
const WORD: usize = size_of::<u64>();

/// Returns the length of the longest block, which determines the number of steps. If all ranks know
/// the counts, this is the count argument. Otherwise `publish` exchanges the counts and returns the
/// length.
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
        | CountSpec::Operator
        | CountSpec::TensorList => Ok(operation.bytes()),
    }
}

/// Exchanges one count per rank, and returns the longest. `mine` is this rank's count in bytes. The
/// function calls `check` with the count of each rank.
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

/// Exchanges one count per pair of ranks, and returns the longest. `mine` returns this rank's count
/// in bytes for another rank. The function calls `check` with each rank's count for this rank.
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

/// The sender or the receiver of a block, and the number of bytes that this rank sends or expects.
pub(super) struct TransferEnd {
    pub(super) rank: Rank,
    pub(super) bytes: u64,
}

/// Fails the group if the sender sends a length that the receiver does not expect. This rank is the
/// sender or the receiver.
pub(super) fn check_counts(
    steps: &ShmSequencer<'_>,
    sender: TransferEnd,
    receiver: TransferEnd,
) -> Result<()> {
    if sender.bytes == receiver.bytes {
        return Ok(());
    }
    let other = if sender.rank == steps.rank() { receiver.rank } else { sender.rank };
    let conflict = CountMismatch {
        sender: steps.peer(sender.rank),
        sent_bytes: sender.bytes,
        receiver: steps.peer(receiver.rank),
        expected_bytes: receiver.bytes,
    };
    Err(steps.fail(conflict.to_error(steps.descriptor(), steps.peer(other))))
}

/// Returns the length that a rank has published.
fn published_length(steps: &ShmSequencer<'_>, rank: Rank) -> Result<usize> {
    let mut word = [0; WORD];
    steps.payload(rank, &mut word);
    let length = u64::from_le_bytes(word);
    addressable_length(length).ok_or_else(|| {
        let peer = steps.peer(rank);
        let message = format!(
            "{peer} published a block of {length} bytes, which exceeds the address space: the memory shared with it \
             was overwritten"
        );
        steps.fail(Error::internal(message).with_culprit(peer.rank))
    })
}

/// Returns the length if it is a possible length of a buffer, that is, at most `isize::MAX` bytes.
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
