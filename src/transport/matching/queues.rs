//! The match queues: posted receives, unexpected messages, and the messages that probes have
//! removed from matching. A message that arrives looks for a posted receive, and a receive that is
//! posted looks for an unexpected message.
//!
//! A probe sees the unexpected messages in the order in which a receive would take them. A matched
//! probe moves its message to `probed`, where neither receives nor other probes find it. The
//! message leaves `probed` when it is received, when the caller returns it to matching, or when its
//! sender cancels it or leaves.

use super::posted::{MatchKey, PostedReceives};
use super::unexpected::{MessageBody, UnexpectedMessage, UnexpectedQueue};
use crate::base::ids::Rank;
use crate::transport::{ProbeRequest, ProbedMessage};
use std::collections::HashMap;

/// The match queues of one engine.
#[derive(Debug, Default)]
pub(super) struct MatchQueues {
    posted: PostedReceives,
    unexpected: UnexpectedQueue,
    /// The messages that probes have removed from matching, by arrival number.
    probed: HashMap<u64, UnexpectedMessage>,
    /// The number of probes that wait for a message.
    waiting_probes: usize,
    /// Whether the waiting probes must search again, because a message has arrived, a sender has
    /// left, or the group has failed.
    has_new_message: bool,
}

impl MatchQueues {
    /// Posts a receive.
    pub(super) fn post(&mut self, key: MatchKey, receive: u64) {
        self.posted.insert(key, receive);
    }

    /// Removes a receive, if it is posted.
    pub(super) fn remove_posted(&mut self, key: MatchKey, receive: u64) {
        self.posted.remove(key, receive);
    }

    /// Returns the first posted receive that a message matches.
    pub(super) fn first_posted(&self, message: &UnexpectedMessage) -> Option<u64> {
        self.posted.first(message.from, message.tag)
    }

    /// Stores a message that no receive has matched.
    pub(super) fn add_unexpected(&mut self, arrival: u64, message: UnexpectedMessage) {
        self.unexpected.insert(arrival, message);
        self.wake_probes();
    }

    /// Returns the first unexpected message that a receive matches, with its arrival number.
    pub(super) fn first_unexpected(&self, key: MatchKey) -> Option<(u64, &UnexpectedMessage)> {
        self.unexpected.first(key)
    }

    /// Removes and returns an unexpected message.
    pub(super) fn take_unexpected(&mut self, arrival: u64) -> Option<UnexpectedMessage> {
        self.unexpected.remove(arrival)
    }

    /// Returns the unexpected messages.
    pub(super) fn unexpected_messages(&self) -> impl Iterator<Item = &UnexpectedMessage> {
        self.unexpected.messages()
    }

    /// Returns whether there is an unexpected message.
    pub(super) fn has_unexpected(&self) -> bool {
        !self.unexpected.is_empty()
    }

    /// Returns the first unexpected message that matches the request. A matched probe also removes
    /// the message from matching.
    pub(super) fn probe(&mut self, request: &ProbeRequest) -> Option<ProbedMessage> {
        let (arrival, found) = self.unexpected.first((request.from, request.tag))?;
        let envelope = found.envelope();
        if !request.is_matched_probe {
            return Some(ProbedMessage { envelope, match_id: None });
        }
        let removed = self.unexpected.remove(arrival)?;
        self.probed.insert(arrival, removed);
        Some(ProbedMessage { envelope, match_id: Some(arrival) })
    }

    /// Removes and returns a message that a probe removed from matching.
    pub(super) fn take_probed(&mut self, match_id: u64) -> Option<UnexpectedMessage> {
        self.probed.remove(&match_id)
    }

    /// Removes a message that was not received and no longer exists, because its sender has
    /// cancelled it.
    pub(super) fn discard(&mut self, arrival: u64) {
        self.unexpected.remove(arrival);
        self.probed.remove(&arrival);
    }

    /// Removes the announced messages of a peer that has left. Buffered messages of the peer stay,
    /// because they are complete.
    pub(super) fn discard_announced_by(&mut self, peer: Rank) {
        let is_announced =
            |message: &UnexpectedMessage| matches!(message.body, MessageBody::AtSender(_));
        let messages = self.unexpected.messages_from(peer);
        let announced: Vec<u64> = messages
            .filter(|(_, message)| is_announced(message))
            .map(|(arrival, _)| arrival)
            .collect();
        announced.into_iter().for_each(|arrival| drop(self.unexpected.remove(arrival)));
        self.probed.retain(|_, message| message.from != peer || !is_announced(message));
        self.wake_probes();
    }

    /// Counts a probe that begins to wait.
    pub(super) fn begin_probe_wait(&mut self) {
        self.waiting_probes += 1;
    }

    /// Ends [`MatchQueues::begin_probe_wait`].
    pub(super) fn end_probe_wait(&mut self) {
        self.waiting_probes -= 1;
    }

    /// Makes the waiting probes search again.
    pub(super) fn wake_probes(&mut self) {
        self.has_new_message |= self.waiting_probes > 0;
    }

    /// Returns whether the waiting probes must search again, and resets that to false.
    pub(super) fn take_probe_wakeup(&mut self) -> bool {
        std::mem::take(&mut self.has_new_message)
    }
}

#[cfg(any(test, fuzzing))]
impl MatchQueues {
    /// Returns the number of bytes that the queues hold.
    pub(super) fn buffered_bytes(&self) -> usize {
        let messages = self.unexpected.messages().chain(self.probed.values());
        messages.map(UnexpectedMessage::buffered_bytes).sum()
    }

    /// Returns the number of waiting probes, and the number of messages that probes have removed
    /// from matching.
    #[cfg(test)]
    pub(super) fn probe_counts(&self) -> (usize, usize) {
        (self.waiting_probes, self.probed.len())
    }
}
