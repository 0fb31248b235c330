//! The receives that wait for a message, found by sender and tag in the order of their posting.

use crate::base::ids::Rank;
use std::collections::{HashMap, VecDeque};

/// From whom and under which tag; `None` for any.
pub(super) type Wanted = (Option<Rank>, Option<u32>);

/// Receives by what they want. They are named by numbers that grow as they are posted.
#[derive(Debug, Default)]
pub(super) struct Posted {
    /// Each in order; none is empty.
    queues: HashMap<Wanted, VecDeque<u64>>,
    /// How many of them take messages of any sender or tag.
    wild: usize,
}

fn is_wild(wanted: Wanted) -> bool {
    wanted.0.is_none() || wanted.1.is_none()
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
