//! One rank's hand in the steps of its domain: what it writes there, and what it sees without
//! waiting.

use super::{Lane, fingerprint};
use crate::base::ids::{Rank, WorldSize};
use crate::base::label::Label;
use crate::base::sync::fence_by;
use crate::transport::line::Line;
use crate::transport::region::Region;
use crate::transport::{Descriptor, SharedDomain};

/// The hand of the rank that holds the lane.
#[derive(Debug)]
pub(super) struct Hand<'a> {
    pub(super) domain: &'a dyn SharedDomain,
    /// What the domain says of itself, which would be a call through a table each time.
    pub(super) region: &'a Region,
    pub(super) rank: Rank,
    pub(super) lane: &'a mut Lane,
}

/// Wakes those of these ranks who sleep, after a fence.
#[inline]
pub(super) fn ring_fenced(
    domain: &dyn SharedDomain,
    region: &Region,
    ranks: impl Iterator<Item = Rank>,
) {
    ranks.filter(|&rank| region.bell(rank).is_attended()).for_each(|rank| domain.ring_fenced(rank));
}

impl<'a> Hand<'a> {
    pub(super) fn of(domain: &'a dyn SharedDomain, lane: &'a mut Lane) -> Self {
        Self { domain, region: domain.region(), rank: domain.rank(), lane }
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
            let sequence = Descriptor::sequence_at(Descriptor::moment_of(words[2]));
            self.region.labels(self.rank).put(sequence, label);
        }
        self.region.progress(self.rank).enter(words);
        self.expect();
    }

    /// Asks for the lines of those who are likely to have written them already, so that they come
    /// while this rank writes its own. It would be taken away from one that has not.
    #[inline]
    fn expect(&self) {
        let coming = self.lane.step + 1;
        let ahead = self.others().filter(|&rank| self.lane.is_ahead[rank]);
        ahead.for_each(|rank| self.region.line(rank, coming).expect());
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
        way: impl Fn(&Line, u64, u64, &[u64; 3], &[u8]),
    ) {
        let step = self.lane.step + 1;
        self.region.progress(self.rank).pass(finished);
        let chain = fingerprint::extend(self.lane.chain, words, label);
        way(self.region.line(self.rank, step), step, chain, words, payload);
        self.lane.step = step;
        self.lane.chain = chain;
    }

    /// Whether a rank has published the current step.
    #[inline]
    pub(super) fn has_published(&self, rank: Rank) -> bool {
        let step = self.lane.step;
        self.region.line(rank, step).step() >= step
    }

    /// Looks for the first time whether a rank has published the current step.
    #[inline]
    pub(super) fn look_for(&mut self, rank: Rank) -> bool {
        let is_there = self.has_published(rank);
        self.lane.is_ahead[rank] = is_there;
        is_there
    }

    /// Takes note of the current step of a rank that has published it; false where that is not what
    /// this rank has.
    #[inline]
    pub(super) fn agrees(&mut self, rank: Rank) -> bool {
        let step = self.lane.step;
        let line = self.region.line(rank, step);
        if line.chain() != self.lane.chain || line.step() != step {
            return false;
        }
        let done = &mut self.lane.done[rank];
        *done = (*done).max(step - 1);
        true
    }

    /// All others have published the current step, and so have finished the one before.
    pub(super) fn has_seen_all(&mut self) {
        self.lane.all_done = self.lane.all_done.max(self.lane.step - 1);
    }

    /// Wakes who waits for what was stored by a sequentially consistent read-modify-write, or
    /// before a fence.
    #[inline]
    pub(super) fn ring_fenced(&self) {
        ring_fenced(self.domain, self.region, self.others());
    }

    /// Wakes who waits for what was stored.
    #[inline]
    pub(super) fn ring(&self) {
        fence_by(&self.lane.fence);
        self.ring_fenced();
    }

    /// Leaves the operation whose last word this is.
    #[inline]
    pub(super) fn finish(&self, word: u64) {
        self.region.progress(self.rank).finish(self.lane.step, word);
    }
}
