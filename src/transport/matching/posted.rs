//! The receives that wait for a message, found by sender and tag in the order of their posting.

use crate::base::ids::Rank;
use crate::transport::LARGEST_TAG;
use std::collections::{HashMap, VecDeque};

/// From whom and under which tag; `None` for any, of tags any that callers have.
pub(super) type Wanted = (Option<Rank>, Option<u32>);

/// Receives by what they want. They are named by numbers that grow as they are posted.
#[derive(Debug, Default)]
pub(super) struct Posted {
    /// Each in order; none is empty.
    queues: HashMap<Wanted, VecDeque<u64>>,
    /// How many of them take callers' messages of any sender or tag.
    wild: usize,
}

/// Whether a tag is one that only those receive who name it.
pub(super) fn is_internal(tag: u32) -> bool {
    tag > LARGEST_TAG
}

/// The library's own receives do not count: they are looked for by their tags only.
fn is_wild(wanted: Wanted) -> bool {
    match wanted {
        (from, Some(tag)) => from.is_none() && !is_internal(tag),
        (_, None) => true,
    }
}

impl Posted {
    /// Adds a receive; one that was taken out before comes back to its place.
    pub(super) fn insert(&mut self, wanted: Wanted, receive: u64) {
        let queue = self.queues.entry(wanted).or_default();
        match queue.back() {
            Some(&last) if last > receive => {
                let place = queue.partition_point(|&other| other < receive);
                queue.insert(place, receive);
            }
            _ => queue.push_back(receive),
        }
        self.wild += usize::from(is_wild(wanted));
    }

    /// Takes a receive out, if it is there.
    pub(super) fn remove(&mut self, wanted: Wanted, receive: u64) {
        let Some(queue) = self.queues.get_mut(&wanted) else { return };
        let Ok(place) = queue.binary_search(&receive) else { return };
        queue.remove(place);
        if queue.is_empty() {
            self.queues.remove(&wanted);
        }
        self.wild -= usize::from(is_wild(wanted));
    }

    /// The first receive that a message matches.
    pub(super) fn first(&self, from: Rank, tag: u32) -> Option<u64> {
        let front = |wanted: Wanted| self.queues.get(&wanted)?.front().copied();
        let exact = front((Some(from), Some(tag)));
        if is_internal(tag) {
            return front((None, Some(tag))).into_iter().chain(exact).min();
        }
        if self.wild == 0 {
            return exact;
        }
        let wild = [(Some(from), None), (None, Some(tag)), (None, None)];
        wild.into_iter().filter_map(front).chain(exact).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_posted_wins_whatever_it_wants() {
        let mut posted = Posted::default();
        posted.insert((Some(1), Some(7)), 1);
        posted.insert((None, Some(7)), 2);
        posted.insert((Some(1), None), 3);
        posted.insert((None, None), 4);
        posted.insert((Some(1), Some(7)), 5);
        for (wanted, first) in [
            ((Some(1), Some(7)), 1),
            ((None, Some(7)), 2),
            ((Some(1), None), 3),
            ((None, None), 4),
            ((Some(1), Some(7)), 5),
        ] {
            assert_eq!(posted.first(1, 7), Some(first));
            posted.remove(wanted, first);
        }
        assert_eq!(posted.first(1, 7), None);
        assert!(posted.queues.is_empty() && posted.wild == 0);
    }

    #[test]
    fn a_tag_of_the_library_is_received_by_name_only() {
        let mut posted = Posted::default();
        let (last, own) = (LARGEST_TAG, LARGEST_TAG + 1);
        posted.insert((Some(1), None), 1);
        posted.insert((None, None), 2);
        assert_eq!((posted.first(1, last), posted.first(1, own)), (Some(1), None));
        posted.insert((None, Some(own)), 3);
        posted.insert((Some(1), Some(own)), 4);
        assert_eq!(posted.wild, 2);
        assert_eq!((posted.first(1, own), posted.first(2, own)), (Some(3), Some(3)));
        posted.remove((None, Some(own)), 3);
        assert_eq!((posted.first(1, own), posted.first(2, own)), (Some(4), None));
        assert_eq!(posted.first(2, last), Some(2));
        posted.remove((Some(1), None), 1);
        posted.remove((None, None), 2);
        assert_eq!(posted.wild, 0);
    }

    #[test]
    fn one_that_comes_back_keeps_its_turn() {
        let mut posted = Posted::default();
        let wanted = (Some(0), Some(0));
        (1..=4).for_each(|receive| posted.insert(wanted, receive));
        posted.remove(wanted, 1);
        posted.remove(wanted, 3);
        posted.insert(wanted, 3);
        posted.insert(wanted, 1);
        assert_eq!(posted.queues[&wanted], [1, 2, 3, 4]);
        posted.remove(wanted, 9);
        assert_eq!(posted.first(0, 0), Some(1));
        assert_eq!(posted.first(0, 1), None);
    }
}
