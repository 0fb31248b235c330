//! The record of a blocked process, as it is stored for the other processes.

use super::awaited_ranks::{AwaitedRanks, awaited_ranks};
use super::message_memory::MessageMemory;
use crate::api::observe::recorder::OpenGroup;
use crate::base::ids::Rank;
use crate::transport::{MessageCounts, MessageTraffic, PeerTag};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The maximum size of a record of another process in bytes.
const MAX_RECORD_BYTES: usize = 1 << 20;

/// The identity of a wait: the key of its process and the number of the wait.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct WaitId {
    pub(super) process: String,
    pub(super) wait: u64,
}

/// The state of a blocked process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct BlockedRecord {
    /// The number of the wait.
    pub(super) wait: u64,
    /// Whether the call may fail because of a deadlock: the process makes calls from one thread,
    /// and the deadline of the call is not near.
    pub(super) may_fail: bool,
    /// The group that the blocked call creates, if it waits for other ranks to create it too: the
    /// short id of the parent, and the name.
    pub(super) joining: Option<(u64, String)>,
    /// The groups of the process by their short ids.
    pub(super) groups: BTreeMap<u64, GroupSnapshot>,
    /// What the wait needs. It ends when all targets of one branch have ended. A wait for any of
    /// several works has one branch for each work, and other waits have one branch. Without edges,
    /// the list is empty.
    pub(super) branches: Vec<WaitBranch>,
    /// How often the process has confirmed that its wait is a part of a cycle.
    pub(super) confirmations: u64,
    /// Whether the process has failed its call because of a deadlock.
    pub(super) has_failed: bool,
}

/// The state of a blocked process in one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GroupSnapshot {
    /// The rank of the process.
    pub(super) rank: Rank,
    /// The number of collectives that the process has issued.
    pub(super) issued: u64,
    /// Whether all these collectives have ended on this rank.
    pub(super) is_idle: bool,
    /// The number of bytes sent to each rank; `None` if some are not in the stream yet.
    pub(super) sent: Vec<(Rank, Option<u64>)>,
    /// The announced messages that no receive has matched: the sender and its number.
    pub(super) announced: Vec<(Rank, u64)>,
    /// The wait of a collective's algorithm for other ranks.
    pub(super) awaited: Option<AwaitedRanks>,
    /// The numbers of messages, if the engine counts messages instead of bytes.
    pub(super) counts: Option<MessageCounts>,
    /// The numbers of messages in device memory, if they are known. Of messages that are enqueued
    /// on the device, a receive counts as received when it was issued.
    pub(super) device_counts: Option<MessageCounts>,
}

impl GroupSnapshot {
    /// Creates the state from what a rank knows about itself.
    pub(super) fn new(
        group: &OpenGroup<'_>,
        traffic: &MessageTraffic,
        device_counts: Option<MessageCounts>,
    ) -> Self {
        let OpenGroup { id, rank, issued, is_idle, .. } = *group;
        let MessageTraffic { sent, announced, counts, .. } = traffic.clone();
        let awaited = awaited_ranks(id, rank).map(|report| report.awaited);
        Self { rank, issued, is_idle, sent, announced, awaited, counts, device_counts }
    }

    /// Returns the numbers of messages in one kind of memory.
    pub(super) fn counts_of(&self, memory: MessageMemory) -> Option<&MessageCounts> {
        match memory {
            MessageMemory::Host => self.counts.as_ref(),
            MessageMemory::Device => self.device_counts.as_ref(),
        }
    }

    /// Returns whether all messages to a rank are within the first `received` bytes.
    pub(super) fn has_sent_at_most(&self, to: Rank, received: u64) -> bool {
        let sent = self.sent.iter().find(|&&(rank, _)| rank == to);
        sent.is_none_or(|&(_, bytes)| bytes.is_some_and(|bytes| bytes <= received))
    }
}

/// The edges of one branch.
pub(super) type WaitBranch = Vec<WaitEdge>;

/// An edge from the wait of the process with the record to other waits. The branch with the edge
/// cannot end before one of the targets ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WaitEdge {
    /// The rank of the process with the record in the outermost group.
    pub(super) from: Rank,
    pub(super) targets: Vec<WaitId>,
    /// The short id of the group of the call. The processes of all targets are members.
    pub(super) group: u64,
    /// What the wait needs, for example "rank 1 in barrier #3 of group world".
    pub(super) text: String,
}

impl BlockedRecord {
    /// Encodes the record for the store.
    pub(super) fn encode(&self) -> Vec<u8> {
        let group = |(id, state): (&u64, &GroupSnapshot)| {
            let GroupSnapshot { rank, issued, is_idle, sent, announced, .. } = state;
            let counts = state.counts.as_ref().map(encode_counts);
            let device_counts = state.device_counts.as_ref().map(encode_counts);
            let awaited = state.awaited.as_ref().map(|it| (it.number, it.sequence, &it.ranks));
            json!([id, rank, issued, is_idle, sent, announced, awaited, counts, device_counts])
        };
        let target = |target: &WaitId| json!([target.process, target.wait]);
        let edge = |edge: &WaitEdge| {
            let targets: Vec<Value> = edge.targets.iter().map(target).collect();
            json!([edge.from, targets, edge.group, edge.text])
        };
        let branch = |edges: &WaitBranch| Value::from(edges.iter().map(edge).collect::<Vec<_>>());
        json!({
            "wait": self.wait,
            "may_fail": self.may_fail,
            "joining": self.joining,
            "groups": self.groups.iter().map(group).collect::<Vec<_>>(),
            "branches": self.branches.iter().map(branch).collect::<Vec<_>>(),
            "confirmations": self.confirmations,
            "has_failed": self.has_failed,
        })
        .to_string()
        .into_bytes()
    }

    /// Decodes the record of another process; `None` for invalid bytes.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() > MAX_RECORD_BYTES {
            return None;
        }
        let value: Value = serde_json::from_slice(bytes).ok()?;
        let groups = value["groups"].as_array()?.iter().map(decode_group);
        let branches = value["branches"].as_array()?.iter().map(decode_branch);
        let joining = match &value["joining"] {
            Value::Null => None,
            joining => Some((joining[0].as_u64()?, joining[1].as_str()?.to_owned())),
        };
        Some(Self {
            wait: value["wait"].as_u64()?,
            may_fail: value["may_fail"].as_bool()?,
            joining,
            groups: groups.collect::<Option<_>>()?,
            branches: branches.collect::<Option<_>>()?,
            confirmations: value["confirmations"].as_u64()?,
            has_failed: value["has_failed"].as_bool()?,
        })
    }
}

fn decode_awaited(value: &Value) -> Option<AwaitedRanks> {
    Some(AwaitedRanks {
        number: value[0].as_u64()?,
        sequence: value[1].as_u64()?,
        ranks: value[2].as_array()?.iter().map(decode_rank).collect::<Option<_>>()?,
    })
}

fn encode_counts(counts: &MessageCounts) -> Value {
    let MessageCounts { sent, received, posted } = counts;
    let list = |counts: &BTreeMap<PeerTag, u64>| {
        Value::from(counts.iter().map(|((rank, tag), n)| json!([rank, tag, n])).collect::<Vec<_>>())
    };
    json!([list(sent), list(received), posted])
}

fn decode_counts(value: &Value) -> Option<MessageCounts> {
    let list = |value: &Value| -> Option<BTreeMap<PeerTag, u64>> {
        let entry =
            |it: &Value| Some(((decode_rank(&it[0])?, decode_tag(&it[1])?), it[2].as_u64()?));
        value.as_array()?.iter().map(entry).collect()
    };
    let posted = |it: &Value| {
        let source = if it[0].is_null() { None } else { Some(decode_rank(&it[0])?) };
        let tag = if it[1].is_null() { None } else { Some(decode_tag(&it[1])?) };
        Some((source, tag))
    };
    Some(MessageCounts {
        sent: list(&value[0])?,
        received: list(&value[1])?,
        posted: value[2].as_array()?.iter().map(posted).collect::<Option<_>>()?,
    })
}

/// Decodes a value that may be missing.
fn optional<T>(value: &Value, decode: impl Fn(&Value) -> Option<T>) -> Option<Option<T>> {
    if value.is_null() { Some(None) } else { decode(value).map(Some) }
}

fn decode_tag(value: &Value) -> Option<u32> {
    u32::try_from(value.as_u64()?).ok()
}

fn decode_rank(value: &Value) -> Option<Rank> {
    usize::try_from(value.as_u64()?).ok()
}

fn decode_group(value: &Value) -> Option<(u64, GroupSnapshot)> {
    let sent = |entry: &Value| {
        let bytes = if entry[1].is_null() { None } else { Some(entry[1].as_u64()?) };
        Some((decode_rank(&entry[0])?, bytes))
    };
    let announced = |entry: &Value| Some((decode_rank(&entry[0])?, entry[1].as_u64()?));
    let state = GroupSnapshot {
        rank: decode_rank(&value[1])?,
        issued: value[2].as_u64()?,
        is_idle: value[3].as_bool()?,
        sent: value[4].as_array()?.iter().map(sent).collect::<Option<_>>()?,
        announced: value[5].as_array()?.iter().map(announced).collect::<Option<_>>()?,
        awaited: optional(&value[6], decode_awaited)?,
        counts: optional(&value[7], decode_counts)?,
        device_counts: optional(&value[8], decode_counts)?,
    };
    Some((value[0].as_u64()?, state))
}

fn decode_branch(value: &Value) -> Option<WaitBranch> {
    value.as_array()?.iter().map(decode_edge).collect()
}

fn decode_edge(value: &Value) -> Option<WaitEdge> {
    let target = |target: &Value| {
        Some(WaitId { process: target[0].as_str()?.to_owned(), wait: target[1].as_u64()? })
    };
    Some(WaitEdge {
        from: decode_rank(&value[0])?,
        targets: value[1].as_array()?.iter().map(target).collect::<Option<_>>()?,
        group: value[2].as_u64()?,
        text: value[3].as_str()?.to_owned(),
    })
}
