//! The presence record of a rank in the region of a domain. A rank writes a nonce (a random number)
//! into its record when it maps the region. Another rank that finds this nonce in the record knows
//! that both ranks have mapped the same memory.
//!
//! The record also has the departure flag, the last core, and the *process cookie*: a random number
//! by which readers of the rank's buffers check that they read from the right process.
//!
//! All fields are atomic words. The rank itself is the only writer.

use super::exposure::ProcessCookie;
use crate::base::ids::Rank;
use crate::base::sync::{AtomicU64, Ordering};

/// The presence record of one rank. The record is zeroed until the rank joins.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct RankPresence {
    nonce: [AtomicU64; 2],
    /// Not zero once the rank has left in order.
    left_flag: AtomicU64,
    /// Not zero once the group exists on the rank, and the rank tolerates deaths.
    tolerance_flag: AtomicU64,
    /// The first rank of whose death this rank knows, plus 1; 0 if it knows of none.
    known_death: AtomicU64,
    /// The number of the core on which the rank last recorded itself, plus 1; 0 if the rank has
    /// recorded none. The word is written only when the core has changed.
    last_core: AtomicU64,
    /// The cookie by which readers of exposed buffers recognise the rank's process.
    pub(super) cookie: ProcessCookie,
    /// The cookie by which writers to the rank's memory recognise the rank's process. It is
    /// published when the rank joins, and stays valid while the process lives.
    pub(super) write_cookie: ProcessCookie,
}

impl RankPresence {
    /// Writes the presence nonce.
    pub fn write_nonce(&self, nonce: [u64; 2]) {
        for (cell, word) in self.nonce.iter().zip(nonce) {
            cell.store(word, Ordering::Release);
        }
    }

    /// Reads the presence nonce.
    pub fn read_nonce(&self) -> [u64; 2] {
        std::array::from_fn(|i| self.nonce[i].load(Ordering::Acquire))
    }

    /// Marks the rank as having left in order. Another rank that finds this mark also sees all
    /// earlier stores of the departed rank.
    pub fn mark_left(&self) {
        self.left_flag.store(1, Ordering::Release);
    }

    /// Returns true once the rank has left in order.
    pub fn has_left(&self) -> bool {
        self.left_flag.load(Ordering::Acquire) != 0
    }

    /// Marks that the rank tolerates deaths. The group exists on it, so all ranks have joined.
    pub fn mark_tolerant(&self) {
        self.tolerance_flag.store(1, Ordering::Release);
    }

    /// Returns true once the rank tolerates deaths.
    pub fn is_tolerant(&self) -> bool {
        self.tolerance_flag.load(Ordering::Acquire) != 0
    }

    /// Records that the rank knows of the death of another rank. Only the first one is kept.
    pub fn record_known_death(&self, dead: Rank) {
        if self.known_death.load(Ordering::Relaxed) == 0 {
            self.known_death.store(dead as u64 + 1, Ordering::Release);
        }
    }

    /// Returns the first rank of whose death the rank knows. The number comes from the memory of
    /// the rank, so the caller checks it.
    pub fn known_death(&self) -> Option<u64> {
        self.known_death.load(Ordering::Acquire).checked_sub(1)
    }

    /// Records the core on which the rank runs.
    pub fn record_core(&self, core: usize) {
        let core = core as u64 + 1;
        if self.last_core.load(Ordering::Relaxed) != core {
            self.last_core.store(core, Ordering::Relaxed);
        }
    }

    /// Returns whether the rank may run on a core: it last recorded this core, or it has recorded
    /// none.
    pub fn may_run_on_core(&self, core: usize) -> bool {
        [0, core as u64 + 1].contains(&self.last_core.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn first_known_death_is_kept() {
        let presence = RankPresence::default();
        assert_eq!(presence.known_death(), None);
        [2, 0].into_iter().for_each(|dead| presence.record_known_death(dead));
        assert_eq!(presence.known_death(), Some(2));
    }

    #[test]
    fn last_core_is_recorded() {
        let (presence, other) = (RankPresence::default(), RankPresence::default());
        assert!(presence.may_run_on_core(0) && presence.may_run_on_core(7));
        for core in [7, 0] {
            presence.record_core(core);
            assert!(presence.may_run_on_core(core) && !presence.may_run_on_core(7 - core));
        }
        assert!(other.may_run_on_core(3));
    }
}
