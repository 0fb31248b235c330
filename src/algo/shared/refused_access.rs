//! The end of an exposure, and the completion of an operation in which the kernel refused access to
//! a peer's memory.
//!
//! The right to read and write the memory of another process can end at any time, also in one
//! direction only. For example, a process drops its privileges (`setuid`). When a rank ends the
//! exposure, it therefore reports how much it has done ([`CmaReport`]). The reports are in the
//! control slots of all ranks, so all ranks come to the same conclusion:
//!
//! - The operation is completed through data slots, with the same result. No data is lost, because
//!   a rank overwrites a range of a vector only after it has folded this range of all vectors.
//! - All later operations of the group use data slots ([`ShmCursor::is_cma_refused`]). The ranks
//!   never try again, also if the right returns.
//!
//! [`ShmCursor::is_cma_refused`]: super::ShmCursor::is_cma_refused

use super::arena_state::NO_ARENA_OFFER;
use super::sequencer::ShmSequencer;
use crate::algo::Operation;
use crate::algo::fold::{Fold, stage_contribution};
use crate::algo::pattern::slices::{chunks, owned_slice};
use crate::base::buffer::Dst;
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use crate::kernel::{self, Stager};
use crate::transport::cma;
use std::ops::Range;

/// How an operation on exposed buffers ended, the same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExposureOutcome {
    /// Some buffer is not readable, so no rank has read anything.
    NotStarted,
    /// All ranks have copied everything.
    Complete,
    /// The kernel refused some access, so the operation must be completed through data slots.
    Interrupted,
}

/// What a rank reports when it ends the exposure of its buffers.
#[derive(Clone, Copy, Debug)]
struct CmaReport {
    /// The number of bytes that the rank has folded, from the start of its slice.
    folded: u64,
    /// Whether the rank has made all its copies.
    has_copied_all: bool,
    /// Whether the kernel refused an access of the rank.
    is_refused: bool,
}

impl CmaReport {
    fn encode(self) -> [[u8; 8]; 3] {
        let flags = u64::from(self.has_copied_all) | u64::from(self.is_refused) << 1;
        [NO_ARENA_OFFER, self.folded.to_le_bytes(), flags.to_le_bytes()]
    }

    fn decode(words: [[u8; 8]; 3]) -> Self {
        let [_, folded, flags] = words.map(u64::from_le_bytes);
        Self { folded, has_copied_all: flags & 1 != 0, is_refused: flags & 2 != 0 }
    }
}

impl ShmSequencer<'_> {
    /// Records that the kernel refused an access of this rank to the memory of a peer.
    #[cold]
    pub(super) fn record_refusal(&self, rank: Rank, error: &Error) {
        self.has_refused_access.set(true);
        cma::log_refusal(self.peer(rank), error);
    }

    /// Ends the exposure: publishes the next step, and waits until all ranks have published it.
    /// After that, no rank accesses the exposed buffers any more. Returns whether all ranks have
    /// made all their copies. `folded` is the number of bytes that this rank has folded, if the
    /// operation folds slices.
    ///
    /// # Errors
    /// As [`ShmSequencer::await_all`].
    pub(super) fn close_exposure(&mut self, folded: usize, has_copied_all: bool) -> Result<bool> {
        let own = CmaReport {
            folded: folded as u64,
            has_copied_all,
            is_refused: self.has_refused_access.get(),
        };
        self.publish(own.encode().as_flattened())?;
        self.await_all()?;
        let (mut have_all_copied, mut is_refused) = (has_copied_all, own.is_refused);
        for rank in self.others() {
            let report = self.report_of(rank);
            have_all_copied &= report.has_copied_all;
            is_refused |= report.is_refused;
        }
        if is_refused {
            self.shm.cursor.is_cma_refused = true;
        }
        Ok(have_all_copied)
    }

    /// Ends the exposure of an operation that folds slices. `len` is the length of this rank's
    /// slice, and `folded` is the number of bytes of it that the rank has folded.
    ///
    /// # Errors
    /// As [`ShmSequencer::await_all`].
    pub(super) fn close_exposure_of_slices(
        &mut self,
        folded: usize,
        len: usize,
        has_copied_all: bool,
    ) -> Result<ExposureOutcome> {
        let is_complete = self.close_exposure(folded, has_copied_all && folded == len)?;
        Ok(if is_complete { ExposureOutcome::Complete } else { ExposureOutcome::Interrupted })
    }

    fn report_of(&self, rank: Rank) -> CmaReport {
        let mut words = [NO_ARENA_OFFER; 3];
        self.payload(rank, words.as_flattened_mut());
        CmaReport::decode(words)
    }

    /// Returns, for each rank, the end of the folded part of its slice. All ranks get the same
    /// numbers. The current step is that of [`ShmSequencer::close_exposure`].
    fn folded_ends(
        &self,
        operation: &Operation<'_>,
        slice_of: impl Fn(Rank) -> Range<usize>,
    ) -> Vec<usize> {
        let size = operation.element_bytes();
        let end_of = |rank| {
            let slice = slice_of(rank);
            // A peer may write anything, so the number is bounded.
            let reported = usize::try_from(self.report_of(rank).folded).unwrap_or(0);
            slice.start + reported.min(slice.len()) / size * size
        };
        (0..self.size()).map(end_of).collect()
    }

    /// Copies a range of the owner's receive buffer to the receive buffers of all other ranks,
    /// through data slots.
    fn copy_from_owner(
        &mut self,
        operation: &Operation<'_>,
        owner: Rank,
        range: Range<usize>,
    ) -> Result<()> {
        let own = operation.recv.range(&range);
        for chunk in chunks(own.len(), self.slot_bytes()) {
            let part = own.range(&chunk);
            if self.rank() == owner {
                kernel::copy(self.next_part(part.len())?, part.as_src());
                self.publish(&NO_ARENA_OFFER)?;
            } else {
                self.publish(&NO_ARENA_OFFER)?;
                self.await_rank(owner)?;
                kernel::copy(part, self.part(owner, part.len()));
            }
        }
        Ok(())
    }

    /// Folds a range of the vectors of all ranks through data slots. This rank stores the result in
    /// `target`, if it is given.
    fn fold_staged(
        &mut self,
        operation: &Operation<'_>,
        range: Range<usize>,
        target: Option<Dst<'_>>,
    ) -> Result<()> {
        let mut stager = Stager::for_total(range.len());
        for chunk in chunks(range.len(), self.slot_bytes()) {
            let (start, len) = (range.start + chunk.start, chunk.len());
            let slot = self.next_part(len)?;
            stage_contribution(operation, &mut stager, slot, operation.send.slice(start, len))?;
            self.publish(&NO_ARENA_OFFER)?;
            self.await_all()?;
            if let Some(target) = target {
                let vector = |rank| self.part(rank, len);
                let fold = Fold::of(operation)?;
                fold.fold_in_order(target.range(&chunk), self.size(), vector);
            }
        }
        Ok(())
    }
}

/// Completes an all-reduce in which the owner of each slice folds the slice, and the folded slices
/// are copied to all ranks.
///
/// # Errors
/// As [`ShmSequencer::await_all`].
pub(super) fn complete_all_reduce(
    steps: &mut ShmSequencer<'_>,
    operation: &Operation<'_>,
) -> Result<()> {
    let (bytes, size) = (operation.bytes(), steps.size());
    let slice_of = |rank| owned_slice(bytes, size, rank);
    let folded_ends = steps.folded_ends(operation, slice_of);
    for (owner, folded_end) in folded_ends.into_iter().enumerate() {
        let (slice, rest) = (slice_of(owner), folded_end..slice_of(owner).end);
        steps.copy_from_owner(operation, owner, slice.start..folded_end)?;
        steps.fold_staged(operation, rest.clone(), Some(operation.recv.range(&rest)))?;
    }
    Ok(())
}

/// Completes a reduce-scatter in which each rank folds its block.
///
/// # Errors
/// As [`ShmSequencer::await_all`].
pub(super) fn complete_reduce_scatter(
    steps: &mut ShmSequencer<'_>,
    operation: &Operation<'_>,
) -> Result<()> {
    let len = operation.recv.len();
    let block_of = |rank: Rank| rank * len..(rank + 1) * len;
    let folded_ends = steps.folded_ends(operation, block_of);
    for (owner, folded_end) in folded_ends.into_iter().enumerate() {
        let rest = folded_end..block_of(owner).end;
        let is_own = owner == steps.rank();
        let target = is_own.then(|| operation.recv.slice(len - rest.len(), rest.len()));
        steps.fold_staged(operation, rest, target)?;
    }
    Ok(())
}
