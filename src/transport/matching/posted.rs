//! The posted receive queue: the receives that wait for a message, found by sender and tag in the
//! order of posting.
//!
//! There is one queue per pair of sender and tag, in which either may be a wildcard. A message
//! looks at the front of each queue that can match it, and takes the receive with the smallest
//! number:
//!
//! ```text
//! posted receives                message                    takes
//! 1: from rank 1, tag 7          from rank 1 with tag 7     receive 1
//! 2: from any,    tag 7          from rank 2 with tag 7     receive 2
//! 3: from rank 1, any tag        from rank 1 with tag 8     receive 3
//! 4: from any,    any tag        from rank 2 with tag 8     receive 4
//! ```

use crate::base::ids::Rank;
use crate::transport::LARGEST_TAG;
use std::collections::{HashMap, VecDeque};

/// The sender and the tag of a receive. `None` matches any sender, or any tag that is not internal.
pub(super) type MatchKey = (Option<Rank>, Option<u32>);

/// Posted receives by match key. A receive is identified by its number, and a receive that is
/// posted later has a higher number.
#[derive(Debug, Default)]
pub(super) struct PostedReceives {
    /// The queues, each in the order of posting. No queue is empty.
    queues: HashMap<MatchKey, VecDeque<u64>>,
    /// The number of posted receives with a wildcard that can match messages of callers. While it
    /// is 0, only one queue can match such a message.
    wildcards: usize,
}

/// Returns whether a tag is internal to the library. Only a receive that names an internal tag
/// matches its messages.
pub(super) fn is_internal_tag(tag: u32) -> bool {
    tag > LARGEST_TAG
}

/// Returns whether a receive counts in `wildcards`. A receive of an internal tag does not: its
/// queues are searched for that tag only.
fn is_wildcard(key: MatchKey) -> bool {
    match key {
        (from, Some(tag)) => from.is_none() && !is_internal_tag(tag),
        (_, None) => true,
    }
}

impl PostedReceives {
    /// Adds a receive. A receive that was removed before returns to its old position.
    pub(super) fn insert(&mut self, key: MatchKey, receive: u64) {
        let queue = self.queues.entry(key).or_default();
        match queue.back() {
            Some(&last) if last > receive => {
                let place = queue.partition_point(|&other| other < receive);
                queue.insert(place, receive);
            }
            _ => queue.push_back(receive),
        }
        self.wildcards += usize::from(is_wildcard(key));
    }

    /// Removes a receive, if it is posted.
    pub(super) fn remove(&mut self, key: MatchKey, receive: u64) {
        let Some(queue) = self.queues.get_mut(&key) else { return };
        let Ok(place) = queue.binary_search(&receive) else { return };
        queue.remove(place);
        if queue.is_empty() {
            self.queues.remove(&key);
        }
        self.wildcards -= usize::from(is_wildcard(key));
    }

    /// Returns the first receive that a message matches.
    pub(super) fn first(&self, from: Rank, tag: u32) -> Option<u64> {
        let front = |wanted: MatchKey| self.queues.get(&wanted)?.front().copied();
        let exact = front((Some(from), Some(tag)));
        if is_internal_tag(tag) {
            return front((None, Some(tag))).into_iter().chain(exact).min();
        }
        if self.wildcards == 0 {
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
    fn first_posted_receive_matches_first() {
        let mut posted = PostedReceives::default();
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
        assert!(posted.queues.is_empty() && posted.wildcards == 0);
    }

    #[test]
    fn internal_tag_needs_a_receive_that_names_it() {
        let mut posted = PostedReceives::default();
        let (last, own) = (LARGEST_TAG, LARGEST_TAG + 1);
        posted.insert((Some(1), None), 1);
        posted.insert((None, None), 2);
        assert_eq!((posted.first(1, last), posted.first(1, own)), (Some(1), None));
        posted.insert((None, Some(own)), 3);
        posted.insert((Some(1), Some(own)), 4);
        assert_eq!(posted.wildcards, 2);
        assert_eq!((posted.first(1, own), posted.first(2, own)), (Some(3), Some(3)));
        posted.remove((None, Some(own)), 3);
        assert_eq!((posted.first(1, own), posted.first(2, own)), (Some(4), None));
        assert_eq!(posted.first(2, last), Some(2));
        posted.remove((Some(1), None), 1);
        posted.remove((None, None), 2);
        assert_eq!(posted.wildcards, 0);
    }

    #[test]
    fn reinserted_receive_keeps_its_order() {
        let mut posted = PostedReceives::default();
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
