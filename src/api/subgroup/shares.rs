//! How much is kept of what comes from others: a bound for all of them together, one for each, and
//! a share of each that no other can use up.
//!
//! Must not know: what is kept.

use crate::base::ids::Rank;
use std::collections::HashMap;

/// What is counted for each thing that is kept, beside its bytes.
const ENTRY: usize = 256;

/// What is kept, in bytes, by sender.
#[derive(Debug)]
pub(super) struct Shares {
    most_for_one: usize,
    most: usize,
    /// Of each sender, whatever the others have.
    reserved: usize,
    used: HashMap<Rank, usize>,
    total: usize,
}

impl Shares {
    /// Of a group of so many ranks, for things of at most so many bytes.
    pub(super) fn new(longest: usize, size: usize) -> Self {
        let most_for_one = longest + ENTRY;
        let most = 2 * most_for_one;
        let reserved = most_for_one / size.max(1);
        Self { most_for_one, most, reserved, used: HashMap::new(), total: 0 }
    }

    /// Counts something, if it may be kept; else the oldest of its sender go first, as
    /// `drop_oldest` has it: their bytes, until there are none. False where it may not be kept even
    /// so.
    pub(super) fn make_room(
        &mut self,
        from: Rank,
        bytes: usize,
        mut drop_oldest: impl FnMut() -> Option<usize>,
    ) -> bool {
        let others = self.total - self.of(from);
        if !self.fits(bytes + ENTRY, others) {
            return false;
        }
        while !self.fits(self.of(from) + bytes + ENTRY, others) {
            let Some(dropped) = drop_oldest() else { return false };
            self.give_back(from, dropped);
        }
        *self.used.entry(from).or_default() += bytes + ENTRY;
        self.total += bytes + ENTRY;
        true
    }

    /// Something is not kept any more.
    pub(super) fn give_back(&mut self, from: Rank, bytes: usize) {
        let Some(used) = self.used.get_mut(&from) else { return };
        let given = (bytes + ENTRY).min(*used);
        *used -= given;
        self.total -= given;
        if *used == 0 {
            self.used.remove(&from);
        }
    }

    fn fits(&self, share: usize, others: usize) -> bool {
        share <= self.most_for_one && (others + share <= self.most || share <= self.reserved)
    }

    fn of(&self, from: Rank) -> usize {
        self.used.get(&from).copied().unwrap_or(0)
    }

    /// What is counted.
    #[cfg(test)]
    pub(super) fn total(&self) -> usize {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing() -> Option<usize> {
        None
    }

    #[test]
    fn entries_count_as_well_as_bytes() {
        let mut shares = Shares::new(10 * ENTRY, 4);
        let kept = (0..100).take_while(|_| shares.make_room(0, 1, nothing)).count();
        assert_eq!(kept, 10);
        assert_eq!(shares.total(), 10 * (ENTRY + 1));
        (0..10).for_each(|_| shares.give_back(0, 1));
        assert_eq!((shares.total(), shares.used.len()), (0, 0));
        shares.give_back(0, 1);
        assert_eq!(shares.total(), 0);
    }

    #[test]
    fn nobody_uses_up_the_share_of_another() {
        let mut shares = Shares::new(100 * ENTRY, 4);
        for greedy in 0..3 {
            while shares.make_room(greedy, ENTRY, nothing) {}
        }
        assert!(shares.total() > shares.most - 2 * ENTRY);
        let kept = (0..100).take_while(|_| shares.make_room(3, ENTRY, nothing)).count();
        assert_eq!(kept, shares.reserved / (2 * ENTRY));
    }

    #[test]
    fn what_is_older_goes_only_for_what_can_be_kept() {
        let mut shares = Shares::new(4 * ENTRY, 1);
        assert!(shares.make_room(0, ENTRY, nothing));
        assert!(shares.make_room(0, ENTRY, nothing));
        let mut dropped = 0;
        let mut drop_oldest = || {
            dropped += 1;
            Some(ENTRY)
        };
        assert!(!shares.make_room(0, 4 * ENTRY + 1, &mut drop_oldest));
        assert!(shares.make_room(0, 2 * ENTRY, &mut drop_oldest));
        assert_eq!(dropped, 1);
        assert_eq!(shares.total(), 5 * ENTRY);
    }
}
