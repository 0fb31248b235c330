//! The sequencer core: the stores of one rank to its control slots, and the polls of the peers'
//! control slots. No function of this file waits. The full path
//! ([`ShmSequencer`](super::ShmSequencer)) and the fast path ([`crate::algo::fast_path`]) both use
//! the core.

use crate::algo::fingerprint;
use crate::algo::mismatch_text::AlgorithmNameFn;
use crate::algo::shared::arena_state::ArenaAccess;
use crate::base::ids::{GroupId, Rank, WorldSize};
use crate::base::label::Label;
use crate::base::sync::{AtomicU64, fence_with_rmw};
use crate::transport::ctrl_slot::CtrlSlot;
use crate::transport::region::Region;
use crate::transport::{Descriptor, SharedDomain};

/// The state that a rank keeps between the operations of one domain.
#[derive(Debug)]
pub struct ShmCursor {
    /// The last step that this rank has published.
    pub(in crate::algo) step: u64,
    /// The call fingerprint of all steps up to `step`.
    call_fingerprint: u64,
    /// For each rank, the newest step that this rank knows the other rank has finished.
    pub(in crate::algo::shared) finished_steps: Vec<u64>,
    /// The newest step that this rank knows all other ranks have finished.
    pub(in crate::algo) finished_by_all: u64,
    /// For each rank, whether its control slot was already published when this rank polled it for
    /// the first time in a step. The value is from the last step in which this rank polled that
    /// rank.
    is_early_rank: Vec<bool>,
    /// The word for the read-modify-write that acts as a fence.
    fence_word: AtomicU64,
    pub(in crate::algo::shared) arena_access: ArenaAccess,
    /// Whether the kernel refused an access of any rank to the memory of a peer (CMA). All ranks
    /// have the same value at the same step.
    pub(in crate::algo) is_cma_refused: bool,
    pub(super) algorithm_name: AlgorithmNameFn,
}

impl ShmCursor {
    /// Returns the cursor of a new group of `size` ranks.
    pub fn new(group: GroupId, size: WorldSize, algorithm_name: AlgorithmNameFn) -> Self {
        Self {
            step: 0,
            call_fingerprint: fingerprint::seed(group, size),
            finished_steps: vec![0; size],
            finished_by_all: 0,
            is_early_rank: vec![false; size],
            fence_word: AtomicU64::new(0),
            arena_access: ArenaAccess::default(),
            is_cma_refused: false,
            algorithm_name,
        }
    }

    /// Returns the state for operations that access arenas in place.
    pub fn arena_access(&self) -> &ArenaAccess {
        &self.arena_access
    }
}

/// The sequencer core of the rank that owns the cursor.
#[derive(Debug)]
pub(in crate::algo) struct SequencerCore<'a> {
    pub(in crate::algo) domain: &'a dyn SharedDomain,
    /// The domain's region. The copy avoids a virtual call for each access.
    pub(in crate::algo) region: &'a Region,
    pub(in crate::algo) rank: Rank,
    pub(in crate::algo) cursor: &'a mut ShmCursor,
}

/// Wakes those of `ranks` that sleep. A fence must precede the call.
#[inline]
pub(in crate::algo) fn wake_ranks_fenced(
    domain: &dyn SharedDomain,
    region: &Region,
    ranks: impl Iterator<Item = Rank>,
) {
    ranks
        .filter(|&rank| region.doorbell(rank).has_waiters())
        .for_each(|rank| domain.wake_rank_fenced(rank));
}

impl<'a> SequencerCore<'a> {
    pub(in crate::algo) fn of(domain: &'a dyn SharedDomain, cursor: &'a mut ShmCursor) -> Self {
        Self { domain, region: domain.region(), rank: domain.rank(), cursor }
    }

    pub(in crate::algo) fn size(&self) -> WorldSize {
        self.region.geometry().ranks
    }

    /// Iterates over the other ranks, starting with the next rank, so that the ranks do not all
    /// read from the same rank at once.
    pub(in crate::algo) fn others(&self) -> impl Iterator<Item = Rank> + use<> {
        let (rank, size) = (self.rank, self.size());
        // Two ranges avoid the division of `(rank + i) % size`, which takes as long as the rest of
        // a step.
        (rank + 1..size).chain(0..rank)
    }

    /// Enters an operation, with the label of the call.
    #[inline]
    pub(in crate::algo) fn enter(&self, words: &[u64; 3], label: &Label) {
        if !label.is_none() {
            let sequence =
                Descriptor::sequence_from_order_key(Descriptor::order_key_from_word(words[2]));
            self.region.labels(self.rank).publish(sequence, label);
        }
        self.region.progress(self.rank).enter(words);
        self.prefetch_early_lines();
    }

    /// Prefetches the control slots of the ranks that have probably already published the next
    /// step. The cache lines then arrive while this rank writes its own control slot. The function
    /// omits the other ranks, because a prefetch of an unpublished control slot would take the
    /// cache line away from its writer.
    #[inline]
    fn prefetch_early_lines(&self) {
        let next_step = self.cursor.step + 1;
        let early_ranks = self.others().filter(|&rank| self.cursor.is_early_rank[rank]);
        early_ranks.for_each(|rank| self.region.ctrl_slot(rank, next_step).prefetch_read());
    }

    /// Marks all steps up to `finished` as finished, and publishes the next step by `write_line`.
    /// All ranks must have finished reading the old contents of the control slot. `finished` is at
    /// least the previous step. In the middle of a rooted operation, this mark is the only
    /// information from which the peers learn this rank's progress.
    #[inline]
    pub(in crate::algo) fn store(
        &mut self,
        words: &[u64; 3],
        label: &Label,
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
    pub(in crate::algo) fn has_published(&self, rank: Rank) -> bool {
        let step = self.cursor.step;
        self.region.ctrl_slot(rank, step).step() >= step
    }

    /// Polls for the first time whether a rank has published the current step.
    #[inline]
    pub(in crate::algo) fn poll_first(&mut self, rank: Rank) -> bool {
        let is_published = self.has_published(rank);
        self.cursor.is_early_rank[rank] = is_published;
        is_published
    }

    /// Records that a rank has published the current step. Returns false if the call fingerprint or
    /// the step in that rank's control slot differs from the value of this rank.
    #[inline]
    pub(in crate::algo) fn verify_rank(&mut self, rank: Rank) -> bool {
        let step = self.cursor.step;
        let slot = self.region.ctrl_slot(rank, step);
        if slot.call_fingerprint() != self.cursor.call_fingerprint || slot.step() != step {
            return false;
        }
        let finished_step = &mut self.cursor.finished_steps[rank];
        *finished_step = (*finished_step).max(step - 1);
        true
    }

    /// Records that all other ranks have published the current step, and thus have finished the
    /// previous step.
    pub(in crate::algo) fn record_all_arrived(&mut self) {
        self.cursor.finished_by_all = self.cursor.finished_by_all.max(self.cursor.step - 1);
    }

    /// Wakes the peers that wait for this rank's last store. That store must be a sequentially
    /// consistent read-modify-write, or a fence must precede the call.
    #[inline]
    pub(in crate::algo) fn wake_others_fenced(&self) {
        wake_ranks_fenced(self.domain, self.region, self.others());
    }

    /// Issues a fence, then wakes the peers that wait for this rank's last store.
    #[inline]
    pub(in crate::algo) fn wake_others(&self) {
        fence_with_rmw(&self.cursor.fence_word);
        self.wake_others_fenced();
    }

    /// Finishes the operation. `word` is the last word of its descriptor.
    #[inline]
    pub(in crate::algo) fn finish(&self, word: u64) {
        self.region.progress(self.rank).finish_operation(self.cursor.step, word);
    }
}
