//! The queues of control messages that a rank has received, for exchanges that have begun and for
//! future exchanges. Also the names of groups that this rank uses.
//!
//! The number of queued bytes is bounded for each sender. If a sender reaches the bound, its oldest
//! messages are dropped. These messages have waited for the longest time for this rank to begin
//! their exchange, and it may never do so.
//!
//! This module does not depend on how messages are sent and received.

use super::definition::{GroupDefinition, conflict_error};
use super::fragment::{MAX_MESSAGE_BYTES, Reassembly};
use super::message::{ExchangeKey, SubgroupMessage};
use super::quota::SenderQuota;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{GroupId, Nonce, Rank};
use crate::base::log::LogLevel;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

/// The maximum number of ended exchanges whose ids are remembered.
const MAX_ENDED_EXCHANGES: usize = 4096;

/// The names of the group and the rank that own the queues, for error texts.
#[derive(Debug)]
pub(super) struct ChannelOwner {
    pub(super) group: String,
    pub(super) rank: Rank,
}

/// A received control message.
#[derive(Debug)]
pub(super) struct ControlMessage {
    pub(super) from: Rank,
    pub(super) key: ExchangeKey,
    pub(super) message: SubgroupMessage,
}

/// A reply to a control message, which is sent immediately.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ControlReply {
    pub(super) to: Rank,
    pub(super) key: ExchangeKey,
    pub(super) message: SubgroupMessage,
}

impl ControlReply {
    /// Returns the reply of `rank` to a commit that arrives after the rank has given up the join.
    pub(super) fn abandoned(to: Rank, id: GroupId, rank: Rank) -> Self {
        let text = format!("rank {rank} of the parent had already failed to create the group");
        let message = SubgroupMessage::Abandoned(Error::new(ErrorKind::PeerFailed, text));
        Self { to, key: ExchangeKey::Id(id), message }
    }
}

/// The queues of a control channel, and its other state.
#[derive(Debug)]
pub(super) struct ChannelQueues {
    /// True if the channel has posted its receive for the first time.
    pub(super) is_open: bool,
    /// The incomplete messages.
    pub(super) reassembly: Reassembly,
    queued: HashMap<ExchangeKey, VecDeque<QueuedMessage>>,
    quota: SenderQuota,
    /// The number of messages that were queued so far, which gives each queued message its number.
    queued_total: u64,
    /// The names for which this rank has a join in progress.
    joining_names: HashSet<String>,
    /// The groups that exist on this rank and were created by their members only, by name.
    live_groups: HashMap<String, GroupDefinition>,
    /// The numbers in default names of groups that were created by their members only, by the
    /// fingerprint (hash) of the list of ranks.
    number_allocators: HashMap<[u8; 16], NumberAllocator>,
    /// The ids of ended exchanges, oldest first.
    ended_exchanges: VecDeque<GroupId>,
    /// The error with which receiving has stopped, if it has stopped.
    pub(super) receive_error: Option<Error>,
}

#[derive(Debug)]
struct QueuedMessage {
    number: u64,
    from: Rank,
    message: SubgroupMessage,
    bytes: usize,
}

impl ChannelQueues {
    /// Creates the queues of a rank in a group of `size` ranks.
    pub(super) fn new(size: usize) -> Self {
        Self {
            is_open: false,
            reassembly: Reassembly::new(size),
            queued: HashMap::new(),
            quota: SenderQuota::new(MAX_MESSAGE_BYTES, size),
            queued_total: 0,
            joining_names: HashSet::new(),
            live_groups: HashMap::new(),
            number_allocators: HashMap::new(),
            ended_exchanges: VecDeque::new(),
            receive_error: None,
        }
    }

    /// Queues a message. If no exchange on this rank will read the message, drops it instead, and
    /// returns the reply if the sender needs one.
    pub(super) fn enqueue(
        &mut self,
        owner: &ChannelOwner,
        ControlMessage { from, key, message }: ControlMessage,
        bytes: usize,
    ) -> Option<ControlReply> {
        match &key {
            ExchangeKey::Id(id) if self.ended_exchanges.contains(id) => return None,
            ExchangeKey::Name(name) if !self.joining_names.contains(name) => {
                let name = name.clone();
                match self.classify(owner, from, &name, &message) {
                    MessageDisposition::Keep => {}
                    MessageDisposition::Drop => return None,
                    MessageDisposition::Answer(message) => {
                        return Some(ControlReply { to: from, key, message });
                    }
                    MessageDisposition::Refuse(id) => {
                        return Some(ControlReply::abandoned(from, id, owner.rank));
                    }
                }
            }
            _ => {}
        }
        let queued = &mut self.queued;
        if !self.quota.charge(from, bytes, || drop_oldest(queued, from)) {
            let text = "too many control messages for groups that do not exist yet";
            crate::log!(LogLevel::Warn, "{text}; one of rank {from} is dropped");
            return None;
        }
        self.queued_total += 1;
        let entry = QueuedMessage { number: self.queued_total, from, message, bytes };
        self.queued.entry(key).or_default().push_back(entry);
        None
    }

    /// Removes and returns the next message of an exchange.
    pub(super) fn pop(&mut self, key: &ExchangeKey) -> Option<(Rank, SubgroupMessage)> {
        let QueuedMessage { from, message, bytes, .. } = self.queued.get_mut(key)?.pop_front()?;
        self.quota.refund(from, bytes);
        Some((from, message))
    }

    /// Ends the exchange with this id on this rank. Queued messages and messages that arrive later
    /// for this exchange are dropped.
    pub(super) fn end_exchange(&mut self, id: GroupId) {
        for QueuedMessage { from, bytes, .. } in
            self.queued.remove(&ExchangeKey::Id(id)).into_iter().flatten()
        {
            self.quota.refund(from, bytes);
        }
        self.ended_exchanges.push_back(id);
        if self.ended_exchanges.len() > MAX_ENDED_EXCHANGES {
            self.ended_exchanges.pop_front();
        }
    }

    /// Begins a join by name (the members of a new group find each other by its name).
    ///
    /// # Errors
    /// `InvalidArgument` if this rank has a group of this name, or if another thread is creating a
    /// group of this name.
    pub(super) fn begin_join(&mut self, name: &str) -> Result<()> {
        let reason = if self.live_groups.contains_key(name) {
            "this rank already has a group of that name, which has not been released"
        } else if self.joining_names.contains(name) {
            "another thread of this rank is creating a group of that name"
        } else {
            self.joining_names.insert(name.to_owned());
            return Ok(());
        };
        Err(Error::invalid(format!("group name \"{name}\": {reason}")))
    }

    /// Ends a join by name. `group` is the definition of the created group, which keeps the name;
    /// `None` if the join has failed. Messages of the join that were not read are handled as if
    /// they arrived now. Returns the replies to send.
    pub(super) fn end_join(
        &mut self,
        owner: &ChannelOwner,
        name: &str,
        group: Option<GroupDefinition>,
    ) -> Vec<ControlReply> {
        self.joining_names.remove(name);
        if let Some(definition) = group {
            self.live_groups.insert(name.to_owned(), definition);
        }
        let key = ExchangeKey::Name(name.to_owned());
        let mut answers = Vec::new();
        for QueuedMessage { from, message, bytes, .. } in
            self.queued.remove(&key).unwrap_or_default()
        {
            self.quota.refund(from, bytes);
            let message = ControlMessage { from, key: key.clone(), message };
            answers.extend(self.enqueue(owner, message, bytes));
        }
        answers
    }

    /// Frees the name of a group.
    pub(super) fn release_name(&mut self, name: &str) {
        self.live_groups.remove(name);
    }

    /// Reserves the lowest free number for a group with this list of ranks. The number stays
    /// reserved until [`Self::settle_number`].
    pub(super) fn reserve_number(&mut self, ranks_fingerprint: [u8; 16]) -> u64 {
        self.number_allocators.entry(ranks_fingerprint).or_default().reserve()
    }

    /// Ends the reservation of a number. If the group was created (`is_made`), the number is used
    /// forever; otherwise it becomes free.
    pub(super) fn settle_number(
        &mut self,
        ranks_fingerprint: [u8; 16],
        number: u64,
        is_made: bool,
    ) {
        self.number_allocators.entry(ranks_fingerprint).or_default().settle(number, is_made);
    }

    /// Decides how to handle a message under a name for which this rank has no join in progress.
    fn classify(
        &mut self,
        owner: &ChannelOwner,
        from: Rank,
        name: &str,
        message: &SubgroupMessage,
    ) -> MessageDisposition {
        match message {
            SubgroupMessage::JoinRequest { nonce, definition, .. } => {
                // The sender has started a new attempt, so messages of its earlier attempts are
                // stale.
                self.drop_attempts(from, name, |_| true);
                match self.live_groups.get(name).filter(|live| *live != definition) {
                    None => MessageDisposition::Keep,
                    Some(definition_here) => {
                        let claims =
                            [(owner.rank, definition_here.clone()), (from, definition.clone())];
                        let reason = conflict_error(&owner.group, &claims);
                        let (attempt, peer_attempt, is_echo) =
                            (Nonce::default(), Some(*nonce), false);
                        MessageDisposition::Answer(SubgroupMessage::Fail {
                            attempt,
                            peer_attempt,
                            is_echo,
                            reason,
                        })
                    }
                }
            }
            // This failure reports a conflict of definitions. If the sender's join request of the
            // same attempt is still queued, this rank is a late member and must learn about the
            // conflict at its join. Otherwise this rank has already joined, or knows the failure,
            // or is not concerned.
            SubgroupMessage::Fail { attempt, peer_attempt: None, is_echo: false, reason }
                if reason.kind() == ErrorKind::Mismatch
                    && self.has_join_request(from, name, *attempt) =>
            {
                MessageDisposition::Keep
            }
            SubgroupMessage::Fail { attempt, .. } => {
                self.drop_attempts(from, name, |nonce| nonce == *attempt);
                MessageDisposition::Drop
            }
            SubgroupMessage::Commit { id, .. } => {
                self.end_exchange(*id);
                MessageDisposition::Refuse(*id)
            }
            _ => MessageDisposition::Drop,
        }
    }

    fn has_join_request(&self, from: Rank, name: &str, attempt: Nonce) -> bool {
        let queued = self.queued.get(&ExchangeKey::Name(name.to_owned()));
        queued.into_iter().flatten().any(|entry| {
            entry.from == from && matches!(entry.message, SubgroupMessage::JoinRequest { nonce, .. } if nonce == attempt)
        })
    }

    /// Drops the messages under a name that come from stale attempts of a rank.
    fn drop_attempts(&mut self, from: Rank, name: &str, is_stale: impl Fn(Nonce) -> bool) {
        let key = ExchangeKey::Name(name.to_owned());
        let Some(queued) = self.queued.get_mut(&key) else { return };
        let quota = &mut self.quota;
        queued.retain(|entry| {
            let attempt = match entry.message {
                SubgroupMessage::JoinRequest { nonce, .. } => nonce,
                SubgroupMessage::Fail { attempt, .. } => attempt,
                _ => return true,
            };
            let is_kept = entry.from != from || !is_stale(attempt);
            if !is_kept {
                quota.refund(from, entry.bytes);
            }
            is_kept
        });
        if queued.is_empty() {
            self.queued.remove(&key);
        }
    }
}

/// The numbers in the default names of groups with the same list of ranks.
#[derive(Debug, Default)]
struct NumberAllocator {
    /// All numbers from 1 up to this number are used.
    last_used: u64,
    /// The numbers above `last_used` that are not free. The value is true if the number is used,
    /// and false if it is only reserved.
    reserved: BTreeMap<u64, bool>,
}

impl NumberAllocator {
    fn reserve(&mut self) -> u64 {
        let mut number = self.last_used + 1;
        while self.reserved.contains_key(&number) {
            number += 1;
        }
        self.reserved.insert(number, false);
        number
    }

    fn settle(&mut self, number: u64, is_made: bool) {
        if !is_made {
            self.reserved.remove(&number);
            return;
        }
        self.reserved.insert(number, true);
        while self.reserved.get(&(self.last_used + 1)) == Some(&true) {
            self.last_used += 1;
            self.reserved.remove(&self.last_used);
        }
    }
}

/// Drops the oldest queued message of a sender and returns the number of its bytes. Returns `None`
/// if the sender has no queued message.
fn drop_oldest(
    queued: &mut HashMap<ExchangeKey, VecDeque<QueuedMessage>>,
    from: Rank,
) -> Option<usize> {
    let queued_messages =
        queued.iter().flat_map(|(key, queue)| queue.iter().map(move |it| (key, it)));
    let oldest = queued_messages.filter(|(_, it)| it.from == from).min_by_key(|(_, it)| it.number);
    let (key, number) = oldest.map(|(key, it)| (key.clone(), it.number))?;
    let queue = queued.get_mut(&key)?;
    let dropped = queue.iter().position(|it| it.number == number);
    let dropped = dropped.and_then(|index| queue.remove(index))?;
    if queue.is_empty() {
        queued.remove(&key);
    }
    Some(dropped.bytes)
}

/// The handling of a message under a name for which this rank has no join in progress.
enum MessageDisposition {
    /// The message is queued for a future join.
    Keep,
    /// The message belongs to an attempt that has ended, and is dropped.
    Drop,
    /// The message is answered with this reply.
    Answer(SubgroupMessage),
    /// The message is the commit of a group that this rank has given up. The sender gets
    /// [`ControlReply::abandoned`].
    Refuse(GroupId),
}

#[cfg(test)]
mod tests {
    use super::super::definition::CreationCall;
    use super::*;
    use crate::api::membership::bootstrap::BootstrapMessage;

    fn owner() -> ChannelOwner {
        ChannelOwner { group: "world".into(), rank: 0 }
    }

    fn join_request(byte: u8, ranks: &[Rank]) -> ControlMessage {
        let definition = GroupDefinition::new(CreationCall::MembersOnly, "g", ranks, "native");
        let (nonce, seen) = (Nonce([byte; 16]), None);
        let message = SubgroupMessage::JoinRequest { nonce, peer_nonce: seen, definition };
        ControlMessage { from: 1, key: ExchangeKey::Name("g".into()), message }
    }

    #[test]
    fn group_number_is_used_only_when_group_is_made() {
        let mut numbers = NumberAllocator::default();
        assert_eq!(numbers.reserve(), 1);
        numbers.settle(1, false);
        assert_eq!((numbers.reserve(), numbers.reserve(), numbers.reserve()), (1, 2, 3));
        numbers.settle(2, true);
        numbers.settle(1, false);
        assert_eq!((numbers.reserve(), numbers.reserve()), (1, 4));
        numbers.settle(1, true);
        numbers.settle(3, true);
        assert_eq!((numbers.last_used, numbers.reserved.len()), (3, 1));
        assert_eq!(numbers.reserve(), 5);
    }

    #[test]
    fn name_is_reserved_from_join_to_group_release() {
        let mut inbox = ChannelQueues::new(2);
        inbox.begin_join("g").unwrap();
        assert_eq!(inbox.begin_join("g").unwrap_err().kind(), ErrorKind::InvalidArgument);
        // The request arrives during the join and is for another group of the same name.
        assert_eq!(inbox.enqueue(&owner(), join_request(1, &[1, 0]), 100), None);
        let group = GroupDefinition::new(CreationCall::MembersOnly, "g", &[0], "native");
        let answers = inbox.end_join(&owner(), "g", Some(group));
        let [ControlReply { to: 1, message, .. }] = &answers[..] else { panic!("{answers:?}") };
        let SubgroupMessage::Fail { peer_attempt, reason, .. } = message else {
            panic!("{message:?}")
        };
        assert_eq!((*peer_attempt, reason.kind()), (Some(Nonce([1; 16])), ErrorKind::Mismatch));
        assert_eq!(inbox.begin_join("g").unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(inbox.quota.total(), 0);
        inbox.release_name("g");
        inbox.begin_join("g").unwrap();
        assert_eq!(inbox.end_join(&owner(), "g", None), []);
        inbox.begin_join("g").unwrap();
    }

    #[test]
    fn commit_after_abandoned_join_is_refused() {
        let mut inbox = ChannelQueues::new(2);
        let (key, id) = (ExchangeKey::Name("g".into()), Nonce([9; 16]));
        inbox.begin_join("g").unwrap();
        let message = SubgroupMessage::Commit { nonce: Nonce([1; 16]), id };
        assert_eq!(inbox.enqueue(&owner(), ControlMessage { from: 1, key, message }, 50), None);
        let answers = inbox.end_join(&owner(), "g", None);
        let key = ExchangeKey::Id(id);
        let [ControlReply { to: 1, key: of, message: SubgroupMessage::Abandoned(_) }] =
            &answers[..]
        else {
            panic!("{answers:?}")
        };
        assert_eq!(*of, key);
        let message = SubgroupMessage::Abandoned(Error::invalid("over"));
        assert_eq!(inbox.enqueue(&owner(), ControlMessage { from: 1, key, message }, 50), None);
        assert_eq!((inbox.pop(&ExchangeKey::Id(id)), inbox.quota.total()), (None, 0));
    }

    #[test]
    fn quota_drops_oldest_messages_of_the_sender() {
        let mut inbox = ChannelQueues { quota: SenderQuota::new(1000, 2), ..ChannelQueues::new(2) };
        let key = |byte| ExchangeKey::Id(Nonce([byte; 16]));
        let part = |from, byte| {
            let part = BootstrapMessage::Contribution { phase: "p".into(), bytes: vec![byte] };
            ControlMessage { from, key: key(byte), message: SubgroupMessage::Bootstrap(part) }
        };
        inbox.enqueue(&owner(), part(1, 100), 10);
        for byte in 1..=10 {
            inbox.enqueue(&owner(), part(0, byte), 10);
        }
        // Each message is charged 266 bytes of 1256 bytes.
        let kept: Vec<u8> = (1..=10).filter(|&byte| inbox.pop(&key(byte)).is_some()).collect();
        assert_eq!(kept, [7, 8, 9, 10]);
        assert!(inbox.pop(&key(100)).is_some());
        assert_eq!(inbox.quota.total(), 0);
    }
}
