//! The unexpected message queue: messages that no receive has matched, found by sender and tag in
//! the order of arrival.

use super::posted::{MatchKey, is_internal_tag};
use crate::base::dtype::DataType;
use crate::base::ids::Rank;
use std::collections::{BTreeMap, BTreeSet};

/// A message that has arrived at least as an RTS.
#[derive(Debug)]
pub(super) struct UnexpectedMessage {
    pub(super) from: Rank,
    pub(super) tag: u32,
    pub(super) dtype: DataType,
    pub(super) len: usize,
    pub(super) body: MessageBody,
}

/// The location of a message's bytes.
#[derive(Debug)]
pub(super) enum MessageBody {
    /// In a buffer of the engine.
    Buffered(Vec<u8>),
    /// At the sender, which has announced the message by an RTS of this number.
    AtSender(u64),
    /// In the buffer of this rank's own send of this number.
    OwnSend(u64),
}

/// Unexpected messages by arrival number, with an index for each kind of match key.
#[derive(Debug, Default)]
pub(super) struct UnexpectedQueue {
    messages: BTreeMap<u64, UnexpectedMessage>,
    by_sender_and_tag: BTreeSet<(Rank, u32, u64)>,
    /// Messages with internal tags are kept apart: a receive of any tag does not see them.
    by_sender: BTreeSet<(Rank, bool, u64)>,
    by_tag: BTreeSet<(u32, u64)>,
    by_internal_tag: BTreeSet<(bool, u64)>,
}

#[cfg(any(test, fuzzing))]
impl UnexpectedMessage {
    /// Returns the number of bytes that the engine buffers for the message.
    pub(super) fn buffered_bytes(&self) -> usize {
        match &self.body {
            MessageBody::Buffered(bytes) => bytes.len(),
            MessageBody::AtSender(_) | MessageBody::OwnSend(_) => 0,
        }
    }
}

impl UnexpectedQueue {
    /// Returns all messages.
    #[cfg(any(test, fuzzing))]
    pub(super) fn messages(&self) -> impl Iterator<Item = &UnexpectedMessage> {
        self.messages.values()
    }

    /// Adds a message. The arrival number grows with each message.
    pub(super) fn insert(&mut self, arrival: u64, message: UnexpectedMessage) {
        let (from, tag) = (message.from, message.tag);
        self.by_sender_and_tag.insert((from, tag, arrival));
        self.by_sender.insert((from, is_internal_tag(tag), arrival));
        self.by_tag.insert((tag, arrival));
        self.by_internal_tag.insert((is_internal_tag(tag), arrival));
        self.messages.insert(arrival, message);
    }

    /// Returns whether there is no message.
    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Removes a message.
    pub(super) fn remove(&mut self, arrival: u64) -> Option<UnexpectedMessage> {
        let message = self.messages.remove(&arrival)?;
        let (from, tag) = (message.from, message.tag);
        self.by_sender_and_tag.remove(&(from, tag, arrival));
        self.by_sender.remove(&(from, is_internal_tag(tag), arrival));
        self.by_tag.remove(&(tag, arrival));
        self.by_internal_tag.remove(&(is_internal_tag(tag), arrival));
        Some(message)
    }

    /// Returns the first message that a receive matches.
    pub(super) fn first(&self, key: MatchKey) -> Option<(u64, &UnexpectedMessage)> {
        let arrival = match key {
            (Some(from), Some(tag)) => {
                let mut range =
                    self.by_sender_and_tag.range((from, tag, 0)..=(from, tag, u64::MAX));
                range.next().map(|&(_, _, arrival)| arrival)
            }
            (Some(from), None) => {
                let mut range = self.by_sender.range((from, false, 0)..=(from, false, u64::MAX));
                range.next().map(|&(_, _, arrival)| arrival)
            }
            (None, Some(tag)) => {
                let mut range = self.by_tag.range((tag, 0)..=(tag, u64::MAX));
                range.next().map(|&(_, arrival)| arrival)
            }
            (None, None) => {
                let mut range = self.by_internal_tag.range((false, 0)..=(false, u64::MAX));
                range.next().map(|&(_, arrival)| arrival)
            }
        }?;
        Some((arrival, self.messages.get(&arrival)?))
    }

    /// Returns the messages of one sender with their arrival numbers.
    pub(super) fn messages_from(
        &self,
        from: Rank,
    ) -> impl Iterator<Item = (u64, &UnexpectedMessage)> {
        let range = self.by_sender.range((from, false, 0)..=(from, true, u64::MAX));
        range.filter_map(|&(_, _, arrival)| Some((arrival, self.messages.get(&arrival)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::LARGEST_TAG;

    fn message(from: Rank, tag: u32) -> UnexpectedMessage {
        UnexpectedMessage {
            from,
            tag,
            dtype: DataType::U8,
            len: 0,
            body: MessageBody::Buffered(Vec::new()),
        }
    }

    #[test]
    fn first_arrival_matches_every_kind_of_receive() {
        let mut unexpected = UnexpectedQueue::default();
        for (arrival, (from, tag)) in [(2, 9), (1, 7), (1, 8), (2, 7), (1, 7)].iter().enumerate() {
            unexpected.insert(arrival as u64, message(*from, *tag));
        }
        let first = |all: &UnexpectedQueue, wanted| all.first(wanted).map(|(arrival, _)| arrival);
        assert_eq!(first(&unexpected, (Some(1), Some(7))), Some(1));
        assert_eq!(first(&unexpected, (Some(1), Some(9))), None);
        assert_eq!(first(&unexpected, (Some(2), None)), Some(0));
        assert_eq!(first(&unexpected, (None, Some(7))), Some(1));
        assert_eq!(first(&unexpected, (None, None)), Some(0));
        assert_eq!(unexpected.messages_from(1).count(), 3);
        unexpected.remove(1);
        unexpected.remove(0);
        assert_eq!(first(&unexpected, (Some(1), Some(7))), Some(4));
        assert_eq!(first(&unexpected, (None, Some(7))), Some(3));
        assert_eq!(first(&unexpected, (None, None)), Some(2));
        for arrival in 0..5 {
            unexpected.remove(arrival);
        }
        assert!(unexpected.by_sender_and_tag.is_empty() && unexpected.by_tag.is_empty());
        assert!(unexpected.by_sender.is_empty() && unexpected.by_internal_tag.is_empty());
    }

    #[test]
    fn any_tag_receive_skips_internal_tags() {
        let mut unexpected = UnexpectedQueue::default();
        let own = LARGEST_TAG + 1;
        for (arrival, tag) in [own, LARGEST_TAG, u32::MAX].into_iter().enumerate() {
            unexpected.insert(arrival as u64, message(1, tag));
        }
        let first = |wanted| unexpected.first(wanted).map(|(arrival, _)| arrival);
        assert_eq!((first((None, None)), first((Some(1), None))), (Some(1), Some(1)));
        assert_eq!((first((None, Some(own))), first((Some(1), Some(own)))), (Some(0), Some(0)));
        assert_eq!(unexpected.messages_from(1).count(), 3);
    }
}
