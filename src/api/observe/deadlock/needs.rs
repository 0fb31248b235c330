//! What a blocked call needs from other processes, and whether the record of a process shows that
//! it has not done this.

use super::blocked_calls::{AwaitedOperation, BlockedCall};
use super::blocked_record::{BlockedRecord, GroupSnapshot};
use crate::api::observe::recorder::{self, EntrySnapshot, OpenGroup};
use crate::base::ids::Rank;
use crate::store::Store;
use crate::transport::{CountSpec, Descriptor, MessageTraffic, OpKind, UnmatchedMessage};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A call of another process without which the blocked call cannot end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Need {
    /// The rank of the other process in the group of the call.
    pub(super) rank: Rank,
    /// The call.
    pub(super) call: NeededCall,
}

/// A call that a process must make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NeededCall {
    /// A collective with this sequence number.
    Collective(u64),
    /// A send. This rank has processed this number of bytes of the process.
    Send { received: u64 },
    /// A receive of the message that was announced under this number.
    Receive { number: u64 },
}

impl Need {
    /// Returns whether the record of the process shows that it has not made the call. `me` is the
    /// rank of this process in the group.
    pub(super) fn is_unmet(&self, group: u64, me: Rank, record: &BlockedRecord) -> bool {
        let state = record.groups.get(&group).filter(|state| state.rank == self.rank);
        state.is_some_and(|state| match self.call {
            NeededCall::Collective(sequence) => state.issued < sequence,
            NeededCall::Send { received } => state.has_sent_at_most(me, received),
            NeededCall::Receive { number } => state.announced.contains(&(me, number)),
        })
    }
}

/// The state of this process for the examination of one blocked call.
#[derive(Debug)]
pub(super) struct OwnState {
    /// The group of the call.
    pub(super) group: u64,
    pub(super) rank: Rank,
    /// The rank of each member of the group in the outermost group.
    pub(super) global_ranks: Vec<Rank>,
    /// The keys of the members' processes.
    pub(super) processes: Vec<String>,
    /// The text of the call, for example "barrier #3 of group world".
    pub(super) text: String,
    /// What the call needs. The rank of this process comes first, and then the ranks after it.
    pub(super) needs: Vec<Need>,
    /// All groups of the process.
    pub(super) groups: BTreeMap<u64, GroupSnapshot>,
    pub(super) store: Arc<dyn Store>,
    /// The time until the deadline of the call.
    pub(super) remaining: Duration,
}

impl OwnState {
    /// Reads the state. Returns `None` if the group is unknown or has no store.
    pub(super) fn read(call: &BlockedCall) -> Option<Self> {
        let mut own = None;
        let mut groups = BTreeMap::new();
        recorder::visit_open_groups(|group| {
            let is_own = group.queue == call.queue;
            let work_id = match call.operation {
                AwaitedOperation::Message { work_id, .. } if is_own => work_id,
                _ => 0,
            };
            let engine = group.backend.point_to_point();
            let traffic = engine.map(|engine| engine.traffic(work_id)).unwrap_or_default();
            groups.insert(group.id, GroupSnapshot::new(group.rank, group.issued, &traffic));
            if is_own {
                own = Self::of_group(call, group, &traffic);
            }
        });
        own.map(|own| Self { groups, ..own })
    }

    /// Creates the state without the list of groups.
    fn of_group(
        call: &BlockedCall,
        group: &OpenGroup<'_>,
        traffic: &MessageTraffic,
    ) -> Option<Self> {
        let (me, size) = (group.rank, group.global_ranks.len());
        let (mut needs, title, issued_ago) = match call.operation {
            AwaitedOperation::Collective { sequence } => {
                let entry = find_collective(group, sequence)?;
                let descriptor = entry.descriptor()?;
                let title = format!("{} #{sequence}", descriptor.call_name());
                let needs = needs_of_collective(&descriptor, me, size);
                (needs, title, entry.issued_ago())
            }
            AwaitedOperation::Message { message, .. } => {
                (needs_of_message(traffic, me), message.to_string(), Duration::ZERO)
            }
        };
        needs.sort_by_key(|need| (need.rank + size - me) % size);
        let timeout = call.timeout.map(|timeout| timeout.saturating_sub(issued_ago));
        let deadlines = call.deadlines.iter().flatten().map(|deadline| deadline.remaining());
        Some(Self {
            group: group.id,
            rank: me,
            global_ranks: group.global_ranks.to_vec(),
            processes: group.backend.rank_locations().iter().map(process_key).collect(),
            text: format!("{title} of group {}", group.name),
            needs,
            groups: BTreeMap::new(),
            store: group.store.upgrade()?,
            remaining: timeout.into_iter().chain(deadlines).min().unwrap_or(Duration::MAX),
        })
    }
}

fn process_key(location: &crate::backend::RankLocation) -> String {
    format!("{}/{}", location.name.host, location.name.pid)
}

fn find_collective(group: &OpenGroup<'_>, sequence: u64) -> Option<EntrySnapshot> {
    let key = (group.id, group.rank as u64);
    recorder::newest_entries(recorder::MAX_ENTRIES).find(|entry| {
        (entry.group, entry.rank) == key && entry.is_collective() && entry.sequence() == sequence
    })
}

/// Returns what a collective needs: the calls of the ranks whose data this rank gets.
fn needs_of_collective(descriptor: &Descriptor, me: Rank, size: usize) -> Vec<Need> {
    let is_root = descriptor.root == Some(me);
    let ranks = match descriptor.kind {
        OpKind::Barrier => 0..size,
        // Such a call may end without the other ranks.
        _ if descriptor.count_spec == CountSpec::Count(0) => 0..0,
        OpKind::AllReduce | OpKind::AllGather | OpKind::ReduceScatter | OpKind::AllToAll => 0..size,
        OpKind::Reduce | OpKind::Gather if is_root => 0..size,
        OpKind::Broadcast | OpKind::Scatter if !is_root => {
            descriptor.root.map_or(0..0, |root| root..root + 1)
        }
        OpKind::Scan | OpKind::Exscan => 0..me,
        _ => 0..0,
    };
    let call = NeededCall::Collective(descriptor.sequence);
    ranks.filter(|&rank| rank != me && rank < size).map(|rank| Need { rank, call }).collect()
}

fn needs_of_message(traffic: &MessageTraffic, me: Rank) -> Vec<Need> {
    let need = |message: &UnmatchedMessage| match *message {
        UnmatchedMessage::Send { to, number } => {
            Some(Need { rank: to, call: NeededCall::Receive { number } })
        }
        UnmatchedMessage::Receive { from } if from == me => {
            Some(Need { rank: me, call: NeededCall::Send { received: 0 } })
        }
        UnmatchedMessage::Receive { from } => {
            let (_, received) = *traffic.received.iter().find(|&&(rank, _)| rank == from)?;
            Some(Need { rank: from, call: NeededCall::Send { received } })
        }
    };
    traffic.unmatched.iter().filter_map(need).collect()
}
