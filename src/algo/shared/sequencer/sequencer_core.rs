//! One rank's hand in the steps of its domain: what it writes there, and what it sees without
//! waiting.

use super::{ShmCursor, fingerprint};
use crate::base::ids::{Rank, WorldSize};
use crate::base::label::Label;
use crate::base::sync::fence_with_rmw;
use crate::transport::ctrl_slot::CtrlSlot;
use crate::transport::region::Region;
use crate::transport::{Descriptor, SharedDomain};

/// The hand of the rank that holds the lane.
#[derive(Debug)]
pub(super) struct SequencerCore<'a> {
    pub(super) domain: &'a dyn SharedDomain,
    /// What the domain says of itself, which would be a call through a table each time.
    pub(super) region: &'a Region,
    pub(super) rank: Rank,
    pub(super) cursor: &'a mut ShmCursor,
}

/// Wakes those of these ranks who sleep, after a fence.
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

    /// The other ranks, the next one first, so that not all read from the same one at once.
    pub(super) fn others(&self) -> impl Iterator<Item = Rank> + use<> {
        let (rank, size) = (self.rank, self.size());
        // Without a division, which takes as long as all else of a step.
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

    /// Asks for the lines of those who are likely to have written them already, so that they come
    /// while this rank writes its own. It would be taken away from one that has not.
    #[inline]
    fn prefetch_early_lines(&self) {
        let next_step = self.cursor.step + 1;
        let early_ranks = self.others().filter(|&rank| self.cursor.is_early_rank[rank]);
        early_ranks.for_each(|rank| self.region.ctrl_slot(rank, next_step).prefetch_read());
    }

    /// Stores the coming step, whose line all must have finished with, by one of the line's ways,
    /// and says that this rank has finished all steps up to `finished`: the one before at least,
    /// which in the middle of a rooted operation is all that the others hear of this rank.
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

    /// Whether a rank has published the current step.
    #[inline]
    pub(super) fn has_published(&self, rank: Rank) -> bool {
        let step = self.cursor.step;
        self.region.ctrl_slot(rank, step).step() >= step
    }

    /// Looks for the first time whether a rank has published the current step.
    #[inline]
    pub(super) fn poll_first(&mut self, rank: Rank) -> bool {
        let is_published = self.has_published(rank);
        self.cursor.is_early_rank[rank] = is_published;
        is_published
    }

    /// Takes note of the current step of a rank that has published it; false where that is not what
    /// this rank has.
    #[inline]
    pub(super) fn verify_rank(&mut self, rank: Rank) -> bool {
        let step = self.cursor.step;
        let line = self.region.ctrl_slot(rank, step);
        if line.call_fingerprint() != self.cursor.call_fingerprint || line.step() != step {
            return false;
        }
        let finished_step = &mut self.cursor.finished_steps[rank];
        *finished_step = (*finished_step).max(step - 1);
        true
    }

    /// All others have published the current step, and so have finished the one before.
    pub(super) fn record_all_arrived(&mut self) {
        self.cursor.finished_by_all = self.cursor.finished_by_all.max(self.cursor.step - 1);
    }

    /// Wakes who waits for what was stored by a sequentially consistent read-modify-write, or
    /// before a fence.
    #[inline]
    pub(super) fn wake_others_fenced(&self) {
        wake_ranks_fenced(self.domain, self.region, self.others());
    }

    /// Wakes who waits for what was stored.
    #[inline]
    pub(super) fn wake_others(&self) {
        fence_with_rmw(&self.cursor.fence_word);
        self.wake_others_fenced();
    }

    /// Leaves the operation whose last word this is.
    #[inline]
    pub(super) fn finish(&self, word: u64) {
        self.region.progress(self.rank).finish_operation(self.cursor.step, word);
    }
}
