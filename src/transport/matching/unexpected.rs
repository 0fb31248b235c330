//! The unexpected message queue: messages that no receive has matched, found by sender and tag in
//! the order of arrival.
//!
//! A receive may name the sender and the tag, or accept any of them. A message is therefore in the
//! index under four keys. For example, a message from rank 1 with tag 7 is found by the keys (1,7),
//! (any,7), (1,any) and (any,any).

use super::posted::{MatchKey, is_internal_tag};
use crate::base::dtype::DataType;
use crate::base::ids::Rank;
use crate::transport::MessageEnvelope;
use std::collections::{BTreeMap, BTreeSet};

/// A message whose header has arrived: an eager frame or an RTS.
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
    /// At the sender, which has announced the message by the RTS with this number.
    AtSender(u64),
    /// In the buffer of the send with this number, which this rank has posted to itself.
    OwnSend(u64),
}

/// Unexpected messages by arrival number, with an index of the match keys that find them.
#[derive(Debug, Default)]
pub(super) struct UnexpectedQueue {
    messages: BTreeMap<u64, UnexpectedMessage>,
    /// The index of `messages`: a pair of key and arrival number for each key that matches a
    /// message. A key without a tag does not match a message with an internal tag.
    index: BTreeSet<(MatchKey, u64)>,
}

/// Returns the match keys of the receives that a message matches.
fn match_keys(message: &UnexpectedMessage) -> impl Iterator<Item = MatchKey> + use<> {
    let (from, tag) = (Some(message.from), Some(message.tag));
    let count = if is_internal_tag(message.tag) { 2 } else { 4 };
    [(from, tag), (None, tag), (from, None), (None, None)].into_iter().take(count)
}

impl UnexpectedMessage {
    /// Returns the message without its bytes.
    pub(super) fn envelope(&self) -> MessageEnvelope {
        let Self { from, tag, dtype, len: bytes, .. } = *self;
        MessageEnvelope { from, tag, dtype, bytes }
    }
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
    pub(super) fn messages(&self) -> impl Iterator<Item = &UnexpectedMessage> {
        self.messages.values()
    }

    /// Adds a message. A message that arrives later has a higher arrival number.
    pub(super) fn insert(&mut self, arrival: u64, message: UnexpectedMessage) {
        self.index.extend(match_keys(&message).map(|key| (key, arrival)));
        self.messages.insert(arrival, message);
    }

    /// Returns whether there is no message.
    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Removes a message.
    pub(super) fn remove(&mut self, arrival: u64) -> Option<UnexpectedMessage> {
        let message = self.messages.remove(&arrival)?;
        for key in match_keys(&message) {
            self.index.remove(&(key, arrival));
        }
        Some(message)
    }

    /// Returns the first message that a receive matches.
    pub(super) fn first(&self, key: MatchKey) -> Option<(u64, &UnexpectedMessage)> {
        let &(_, arrival) = self.index.range((key, 0)..=(key, u64::MAX)).next()?;
        Some((arrival, self.messages.get(&arrival)?))
    }

    /// Returns the messages of one sender with their arrival numbers.
    pub(super) fn messages_from(
        &self,
        from: Rank,
    ) -> impl Iterator<Item = (u64, &UnexpectedMessage)> {
        let (first, last) = ((Some(from), Some(0)), (Some(from), Some(u32::MAX)));
        let range = self.index.range((first, 0)..=(last, u64::MAX));
        range.filter_map(|&(_, arrival)| Some((arrival, self.messages.get(&arrival)?)))
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
        assert!(unexpected.index.is_empty() && unexpected.is_empty());
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
