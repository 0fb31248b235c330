//! A quota for the memory in which a rank keeps data that other ranks (senders) have sent. The
//! quota bounds the bytes of each sender and the total of all senders. The quota also reserves some
//! bytes for each sender, which other senders cannot use up.
//!
//! This module does not depend on the kind of data.

use crate::base::ids::Rank;
use std::collections::HashMap;

/// The number of bytes that each entry is charged in addition to its data.
const ENTRY_OVERHEAD: usize = 256;

/// The quota, and the bytes that are charged to each sender.
#[derive(Debug)]
pub(super) struct SenderQuota {
    max_per_sender: usize,
    max_total: usize,
    /// The bytes that each sender may use even if the other senders have used up the total.
    reserved: usize,
    used: HashMap<Rank, usize>,
    total: usize,
}

impl SenderQuota {
    /// Creates the quota of a group of `size` ranks, for entries of at most `longest` bytes.
    pub(super) fn new(longest: usize, size: usize) -> Self {
        let max_per_sender = longest + ENTRY_OVERHEAD;
        let max_total = 2 * max_per_sender;
        let reserved = max_per_sender / size.max(1);
        Self { max_per_sender, max_total, reserved, used: HashMap::new(), total: 0 }
    }

    /// Charges an entry of `bytes` bytes to a sender. If there is not enough space, calls
    /// `drop_oldest` until there is. `drop_oldest` drops the sender's oldest entry and returns its
    /// bytes, or `None` if the sender has no entry. Returns false if the entry does not fit even
    /// without the sender's other entries; then the entry is not charged.
    pub(super) fn charge(
        &mut self,
        from: Rank,
        bytes: usize,
        mut drop_oldest: impl FnMut() -> Option<usize>,
    ) -> bool {
        let others = self.total - self.used_by(from);
        if !self.fits(bytes + ENTRY_OVERHEAD, others) {
            return false;
        }
        while !self.fits(self.used_by(from) + bytes + ENTRY_OVERHEAD, others) {
            let Some(dropped) = drop_oldest() else { return false };
            self.refund(from, dropped);
        }
        *self.used.entry(from).or_default() += bytes + ENTRY_OVERHEAD;
        self.total += bytes + ENTRY_OVERHEAD;
        true
    }

    /// Refunds an entry of `bytes` bytes that is no longer kept.
    pub(super) fn refund(&mut self, from: Rank, bytes: usize) {
        let Some(used) = self.used.get_mut(&from) else { return };
        let refunded = (bytes + ENTRY_OVERHEAD).min(*used);
        *used -= refunded;
        self.total -= refunded;
        if *used == 0 {
            self.used.remove(&from);
        }
    }

    fn fits(&self, share: usize, others: usize) -> bool {
        share <= self.max_per_sender && (others + share <= self.max_total || share <= self.reserved)
    }

    fn used_by(&self, from: Rank) -> usize {
        self.used.get(&from).copied().unwrap_or(0)
    }

    /// Returns the total number of charged bytes.
    #[cfg(test)]
    pub(super) fn total(&self) -> usize {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn no_oldest() -> Option<usize> {
        None
    }

    #[test]
    fn quota_counts_entries_and_bytes() {
        let mut quota = SenderQuota::new(10 * ENTRY_OVERHEAD, 4);
        let kept = (0..100).take_while(|_| quota.charge(0, 1, no_oldest)).count();
        assert_eq!(kept, 10);
        assert_eq!(quota.total(), 10 * (ENTRY_OVERHEAD + 1));
        (0..10).for_each(|_| quota.refund(0, 1));
        assert_eq!((quota.total(), quota.used.len()), (0, 0));
        quota.refund(0, 1);
        assert_eq!(quota.total(), 0);
    }

    #[test]
    fn senders_cannot_use_the_reserve_of_others() {
        let mut quota = SenderQuota::new(100 * ENTRY_OVERHEAD, 4);
        for greedy in 0..3 {
            while quota.charge(greedy, ENTRY_OVERHEAD, no_oldest) {}
        }
        assert!(quota.total() > quota.max_total - 2 * ENTRY_OVERHEAD);
        let kept = (0..100).take_while(|_| quota.charge(3, ENTRY_OVERHEAD, no_oldest)).count();
        assert_eq!(kept, quota.reserved / (2 * ENTRY_OVERHEAD));
    }

    #[test]
    fn oldest_entry_goes_only_if_the_new_one_fits() {
        let mut quota = SenderQuota::new(4 * ENTRY_OVERHEAD, 1);
        assert!(quota.charge(0, ENTRY_OVERHEAD, no_oldest));
        assert!(quota.charge(0, ENTRY_OVERHEAD, no_oldest));
        let mut dropped = 0;
        let mut drop_oldest = || {
            dropped += 1;
            Some(ENTRY_OVERHEAD)
        };
        assert!(!quota.charge(0, 4 * ENTRY_OVERHEAD + 1, &mut drop_oldest));
        assert!(quota.charge(0, 2 * ENTRY_OVERHEAD, &mut drop_oldest));
        assert_eq!(dropped, 1);
        assert_eq!(quota.total(), 5 * ENTRY_OVERHEAD);
    }
}
