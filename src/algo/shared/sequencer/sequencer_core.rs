//! The sequencer core: the stores of one rank to the control slots of its domain, and the polls
//! that do not wait.

use super::{ShmCursor, fingerprint};
use crate::base::ids::{Rank, WorldSize};
use crate::base::label::Label;
use crate::base::sync::fence_with_rmw;
use crate::transport::ctrl_slot::CtrlSlot;
use crate::transport::region::Region;
use crate::transport::{Descriptor, SharedDomain};

/// The sequencer core of the rank that owns the cursor.
#[derive(Debug)]
pub(super) struct SequencerCore<'a> {
    pub(super) domain: &'a dyn SharedDomain,
    /// The domain's region. The copy avoids a virtual call for each access.
    pub(super) region: &'a Region,
    pub(super) rank: Rank,
    pub(super) cursor: &'a mut ShmCursor,
}

/// Wakes the sleeping ranks of `ranks`. A fence must precede the call.
#[inline]
pub(super) fn wake_ranks_fenced(
    domain: &dyn SharedDomain,
    region: &Region,
    ranks: impl Iterator<Item = Rank>,
) {
    ranks
        .filter(|&rank| region.doorbell(rank).has_waiters())
        .for_each(|rank| domain.wake_rank_fenced(rank));
}

impl<'a> SequencerCore<'a> {
    pub(super) fn of(domain: &'a dyn SharedDomain, cursor: &'a mut ShmCursor) -> Self {
        Self { domain, region: domain.region(), rank: domain.rank(), cursor }
    }

    pub(super) fn size(&self) -> WorldSize {
        self.region.geometry().ranks
    }

    /// Iterates over the other ranks, starting with the next rank, so that the ranks do not all
    /// read from the same rank at once.
    pub(super) fn others(&self) -> impl Iterator<Item = Rank> + use<> {
        let (rank, size) = (self.rank, self.size());
        // The code avoids a division, which takes as long as the rest of a step.
        (rank + 1..size).chain(0..rank)
    }

    /// Enters an operation, with the label of the call.
    #[inline]
    pub(super) fn enter(&self, words: &[u64; 3], label: &Label) {
        if !label.is_none() {
            let sequence =
                Descriptor::sequence_from_order_key(Descriptor::order_key_from_word(words[2]));
            self.region.labels(self.rank).publish(sequence, label);
        }
        self.region.progress(self.rank).enter(words);
        self.prefetch_early_lines();
    }

    /// Prefetches the control slots of the ranks that have probably published them already. The
    /// cache lines then arrive while this rank writes its own. A prefetch of an unpublished control
    /// slot would take the cache line away from its writer.
    #[inline]
    fn prefetch_early_lines(&self) {
        let next_step = self.cursor.step + 1;
        let early_ranks = self.others().filter(|&rank| self.cursor.is_early_rank[rank]);
        early_ranks.for_each(|rank| self.region.ctrl_slot(rank, next_step).prefetch_read());
    }

    /// Stores the next step, by `write_line`. All ranks must have finished with the control slot's
    /// old contents. Marks all steps up to `finished` as finished. `finished` is at least the
    /// previous step. In the middle of a rooted operation, the peers learn this rank's progress
    /// only from this mark.
    #[inline]
    pub(super) fn store(
        &mut self,
        (words, label): (&[u64; 3], &Label),
        payload: &[u8],
        finished: u64,
        write_line: impl Fn(&CtrlSlot, u64, u64, &[u64; 3], &[u8]),
    ) {
        let step = self.cursor.step + 1;
        self.region.progress(self.rank).finish_step(finished);
        let call_fingerprint = fingerprint::extend(self.cursor.call_fingerprint, words, label);
        write_line(self.region.ctrl_slot(self.rank, step), step, call_fingerprint, words, payload);
        self.cursor.step = step;
        self.cursor.call_fingerprint = call_fingerprint;
    }

    /// Returns whether a rank has published the current step.
    #[inline]
    pub(super) fn has_published(&self, rank: Rank) -> bool {
        let step = self.cursor.step;
        self.region.ctrl_slot(rank, step).step() >= step
    }

    /// Polls for the first time whether a rank has published the current step.
    #[inline]
    pub(super) fn poll_first(&mut self, rank: Rank) -> bool {
        let is_published = self.has_published(rank);
        self.cursor.is_early_rank[rank] = is_published;
        is_published
    }

    /// Records that a rank has published the current step. Returns false if the rank's call
    /// fingerprint or step differs from this rank's.
    #[inline]
    pub(super) fn verify_rank(&mut self, rank: Rank) -> bool {
        let step = self.cursor.step;
        let slot = self.region.ctrl_slot(rank, step);
        if slot.call_fingerprint() != self.cursor.call_fingerprint || slot.step() != step {
            return false;
        }
        let finished_step = &mut self.cursor.finished_steps[rank];
        *finished_step = (*finished_step).max(step - 1);
        true
    }

    /// Records that all other ranks have published the current step, and so have finished the
    /// previous one.
    pub(super) fn record_all_arrived(&mut self) {
        self.cursor.finished_by_all = self.cursor.finished_by_all.max(self.cursor.step - 1);
    }

    /// Wakes the peers that wait for this rank's last store. That store must be a sequentially
    /// consistent read-modify-write, or a fence must precede the call.
    #[inline]
    pub(super) fn wake_others_fenced(&self) {
        wake_ranks_fenced(self.domain, self.region, self.others());
    }

    /// Issues a fence, then wakes the peers that wait for this rank's last store.
    #[inline]
    pub(super) fn wake_others(&self) {
        fence_with_rmw(&self.cursor.fence_word);
        self.wake_others_fenced();
    }

    /// Finishes the operation. `word` is the last word of its descriptor.
    #[inline]
    pub(super) fn finish(&self, word: u64) {
        self.region.progress(self.rank).finish_operation(self.cursor.step, word);
    }
}
