//! The presence record of a rank in the memory of a domain. The rank writes a nonce when it maps the
//! region, and every other rank reads it: this proves that both map the same memory. The record also
//! has the departure flag, the last core, and the process cookie for messages.
//!
//! All fields are atomic words with one writer, the rank itself.

use super::exposure::ProcessCookie;
use crate::base::sync::{AtomicU64, Ordering};

/// The presence record of one rank. A zeroed record is that of a rank that has not joined yet.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct RankPresence {
    nonce: [AtomicU64; 2],
    /// Not zero once the rank has left in order.
    left_flag: AtomicU64,
    /// The number of the core on which the rank was last seen, plus 1. Rarely written.
    last_core: AtomicU64,
    /// The cookie by which readers of exposed buffers recognise the rank's process.
    pub(super) cookie: ProcessCookie,
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

    /// Marks the rank as having left in order. A rank that reads this flag can read all earlier
    /// stores of the departed rank.
    pub fn mark_left(&self) {
        self.left_flag.store(1, Ordering::Release);
    }

    /// Returns true once the rank has left in order.
    pub fn has_left(&self) -> bool {
        self.left_flag.load(Ordering::Acquire) != 0
    }

    /// Records the core on which the rank runs.
    pub fn record_core(&self, core: usize) {
        let core = core as u64 + 1;
        if self.last_core.load(Ordering::Relaxed) != core {
            self.last_core.store(core, Ordering::Relaxed);
        }
    }

    /// Returns whether the rank may run on a core: it was last seen there, or it was never seen.
    pub fn may_run_on_core(&self, core: usize) -> bool {
        [0, core as u64 + 1].contains(&self.last_core.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

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
