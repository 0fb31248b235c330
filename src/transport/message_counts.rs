//! The numbers of a rank's messages, for each peer and tag. Engines that do not see the stream of
//! bytes report them, so that the search for deadlocks can compare the messages of two ranks.
//!
//! Messages with the same sender, receiver and tag match receives in the order of their sends. So
//! if the receiver has received n of them and has no posted receive for another one, then message
//! n + 1 has not been matched.

use crate::base::ids::Rank;
use std::collections::{BTreeMap, BTreeSet};

/// The maximum number of entries. A rank with more entries reports no counts.
const MAX_ENTRIES: usize = 512;

/// A peer and a tag.
pub type PeerTag = (Rank, u32);

/// The messages of one rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MessageCounts {
    /// The number of messages that this rank has sent or begun to send.
    pub sent: BTreeMap<PeerTag, u64>,
    /// The number of messages that this rank has received.
    pub received: BTreeMap<PeerTag, u64>,
    /// The source and the tag of each posted receive; `None` for any.
    pub posted: BTreeSet<(Option<Rank>, Option<u32>)>,
}

impl MessageCounts {
    /// The tag of messages that have no tags.
    pub const NO_TAG: u32 = 0;

    /// Returns the number of messages that were sent to a rank with a tag, or with any tag.
    pub fn sent_to(&self, rank: Rank, tag: Option<u32>) -> u64 {
        count(&self.sent, rank, tag)
    }

    /// Returns the number of messages that were received from a rank with a tag, or with any tag.
    pub fn received_from(&self, rank: Rank, tag: Option<u32>) -> u64 {
        count(&self.received, rank, tag)
    }

    /// Returns whether a posted receive may match a message.
    pub fn may_receive(&self, from: Rank, tag: u32) -> bool {
        let matches = |&(source, wanted): &(Option<Rank>, Option<u32>)| {
            source.is_none_or(|source| source == from) && wanted.is_none_or(|wanted| wanted == tag)
        };
        self.posted.iter().any(matches)
    }

    /// Returns whether there are so many entries that the counts are not reported.
    pub fn is_too_long(&self) -> bool {
        self.sent.len() + self.received.len() + self.posted.len() > MAX_ENTRIES
    }
}

fn count(counts: &BTreeMap<PeerTag, u64>, rank: Rank, tag: Option<u32>) -> u64 {
    let (first, last) = (tag.unwrap_or(0), tag.unwrap_or(u32::MAX));
    counts.range((rank, first)..=(rank, last)).map(|(_, count)| count).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_one_tag_and_of_all_tags() {
        let sent = BTreeMap::from([((1, 3), 2), ((1, u32::MAX), 5), ((2, 0), 7)]);
        let counts = MessageCounts { sent, ..MessageCounts::default() };
        assert_eq!((counts.sent_to(1, Some(3)), counts.sent_to(1, None)), (2, 7));
        assert_eq!((counts.sent_to(2, Some(1)), counts.sent_to(0, None)), (0, 0));
    }

    #[test]
    fn posted_receives_match_by_source_and_tag() {
        let may = |source, wanted| {
            let posted = BTreeSet::from([(source, wanted)]);
            MessageCounts { posted, ..MessageCounts::default() }.may_receive(1, 3)
        };
        assert!(may(Some(1), Some(3)) && may(None, Some(3)) && may(Some(1), None));
        assert!(!may(Some(2), Some(3)) && !may(Some(1), Some(4)) && !may(None, Some(4)));
    }
}
