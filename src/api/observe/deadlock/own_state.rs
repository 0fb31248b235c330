//! The state of this process for the examination of one blocked call.

use super::awaited_ranks::{AwaitedRanksReport, awaited_ranks};
use super::blocked_calls::{AwaitedOperation, BlockedCall, CallBranches, PublishedNeeds};
use super::blocked_record::GroupSnapshot;
use super::message_memory::MessageMemory;
use super::needs::{
    CallerRank, Need, NeededCall, RankNeed, needs_of_collective, needs_of_enqueued_message,
    needs_of_message,
};
use crate::api::observe::recorder::{self, EntrySnapshot, OpenGroup};
use crate::backend::{DeviceBackend, DevicePointToPoint};
use crate::base::ids::Rank;
use crate::base::sort::sort_by_key;
use crate::store::Store;
use crate::transport::{MessageCounts, MessageTraffic};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The state of this process.
#[derive(Debug)]
pub(super) struct OwnState {
    /// The key of this process.
    pub(super) process: String,
    /// The calls of the wait: it ends when all calls of one branch have ended.
    pub(super) branches: Vec<Vec<OwnCall>>,
    /// The group that the call creates.
    pub(super) joining: Option<(u64, String)>,
    /// All groups of the process.
    pub(super) groups: BTreeMap<u64, GroupSnapshot>,
    pub(super) store: Arc<dyn Store>,
    /// The time until the first deadline of the calls.
    pub(super) remaining: Duration,
}

/// The state of one call of the wait.
#[derive(Debug)]
pub(super) struct OwnCall {
    pub(super) caller: CallerRank,
    /// The rank of each member of the group in the outermost group.
    pub(super) global_ranks: Vec<Rank>,
    /// The keys of the members' processes.
    pub(super) processes: Vec<String>,
    /// The text of the call, for example "barrier #3 of group world".
    pub(super) text: String,
    /// What the call needs. The rank of this process comes first, and then the ranks after it.
    pub(super) needs: Vec<Need>,
    joining: Option<(u64, String)>,
    store: Arc<dyn Store>,
    remaining: Duration,
}

/// The needs and the description of a blocked call.
#[derive(Default)]
struct CallState {
    needs: Vec<Need>,
    title: String,
    joining: Option<(u64, String)>,
    issued_ago: Duration,
}

impl OwnState {
    /// Reads the state. `published` is what the call has published. Returns `None` if a group is
    /// unknown, if it has no store, or if the groups have different stores.
    pub(super) fn read(
        branches: &CallBranches,
        published: Option<&PublishedNeeds>,
    ) -> Option<Self> {
        let mut found: Vec<Vec<Option<OwnCall>>> =
            branches.iter().map(|calls| calls.iter().map(|_| None).collect()).collect();
        let mut groups = BTreeMap::new();
        recorder::visit_open_groups(|group| {
            let engine = group.backend.point_to_point();
            let traffic = |work_id| engine.map(|it| it.traffic(work_id)).unwrap_or_default();
            let state = GroupSnapshot::new(group, &traffic(0), device_counts(group));
            groups.insert(group.id, state);
            for (calls, found) in branches.iter().zip(&mut found) {
                for (call, found) in calls.iter().zip(found) {
                    if call.queue == group.queue {
                        *found = OwnCall::read(call, published, group);
                    }
                }
            }
        });
        let branches: Vec<Vec<OwnCall>> =
            found.into_iter().map(|calls| calls.into_iter().collect()).collect::<Option<_>>()?;
        let first = branches.iter().flatten().next()?;
        let has_store =
            |call: &OwnCall| std::ptr::addr_eq(call.store.as_ref(), first.store.as_ref());
        if !branches.iter().flatten().all(has_store) {
            return None;
        }
        Some(Self {
            process: first.processes.get(first.caller.rank)?.clone(),
            joining: first.joining.clone(),
            groups,
            store: Arc::clone(&first.store),
            remaining: branches.iter().flatten().map(|call| call.remaining).min()?,
            branches,
        })
    }
}

impl OwnCall {
    /// Reads the state of a call of this group.
    fn read(
        call: &BlockedCall,
        published: Option<&PublishedNeeds>,
        group: &OpenGroup<'_>,
    ) -> Option<Self> {
        let (me, size) = (group.rank, group.global_ranks.len());
        let mut state = match call.operation {
            AwaitedOperation::Collective { sequence } => collective_state(group, sequence)?,
            AwaitedOperation::Message { work_id, message } => CallState {
                needs: message_needs(group, work_id),
                title: message.to_string(),
                ..CallState::default()
            },
            AwaitedOperation::EnqueuedMessage { position, message } => {
                let counts = group.counter.enqueued_messages();
                let needs = needs_of_enqueued_message(&message, position, &counts, me);
                let (needs, title) = (needs.into_iter().collect(), message.to_string());
                CallState { needs, title, ..CallState::default() }
            }
            AwaitedOperation::Control => {
                let PublishedNeeds { title, needs, joining } = published?.clone();
                CallState { needs, title, joining, ..CallState::default() }
            }
        };
        let first_rank = |need: &Need| need.alternatives.first().map_or(me, |it| it.rank);
        sort_by_key(&mut state.needs, |need| (first_rank(need) + size - me) % size);
        let timeout = call.timeout.map(|timeout| timeout.saturating_sub(state.issued_ago));
        let deadlines = call.deadlines.iter().flatten().map(|deadline| deadline.remaining());
        Some(Self {
            caller: CallerRank { group: group.id, rank: me },
            global_ranks: group.global_ranks.to_vec(),
            processes: group.backend.rank_locations().iter().map(process_key).collect(),
            text: format!("{} of group {}", state.title, group.name),
            needs: state.needs,
            joining: state.joining,
            store: group.store.upgrade()?,
            remaining: timeout.into_iter().chain(deadlines).min().unwrap_or(Duration::MAX),
        })
    }
}

fn process_key(location: &crate::backend::RankLocation) -> String {
    format!("{}/{}", location.name.host, location.name.pid)
}

/// Returns the interface for messages in device memory, if the group has one.
fn device_engine<'a>(group: &OpenGroup<'a>) -> Option<&'a dyn DevicePointToPoint> {
    group.backend.device().and_then(DeviceBackend::point_to_point)
}

/// Returns the numbers of messages in device memory, if they are known.
fn device_counts(group: &OpenGroup<'_>) -> Option<MessageCounts> {
    if let Some(engine) = device_engine(group) {
        return engine.traffic(0).counts;
    }
    let counts = group.backend.device().map(|_| group.counter.enqueued_messages());
    counts.filter(|counts| !counts.is_too_long())
}

/// Returns what the messages of a work need. One of the two engines has these messages.
fn message_needs(group: &OpenGroup<'_>, work_id: usize) -> Vec<Need> {
    let (me, size) = (group.rank, group.global_ranks.len());
    let host = group.backend.point_to_point().map(|engine| engine.traffic(work_id));
    let device = device_engine(group).map(|engine| engine.traffic(work_id));
    let needs = |(traffic, memory): (Option<MessageTraffic>, MessageMemory)| {
        traffic.map(|traffic| needs_of_message(&traffic, memory, me, size)).unwrap_or_default()
    };
    [(host, MessageMemory::Host), (device, MessageMemory::Device)]
        .into_iter()
        .flat_map(needs)
        .collect()
}

/// Returns the state of the collective with this sequence number.
fn collective_state(group: &OpenGroup<'_>, sequence: u64) -> Option<CallState> {
    let (me, size) = (group.rank, group.global_ranks.len());
    let entry = find_collective(group, sequence)?;
    let descriptor = entry.descriptor()?;
    let sizes = entry.details().collective_sizes(&descriptor, me, Some(size));
    let mut needs = needs_of_collective(&descriptor, &sizes, me, size);
    // The call waits for all earlier collectives of the group, too.
    let report = awaited_ranks(group.id, me).filter(|report| report.awaited.sequence <= sequence);
    if let Some(AwaitedRanksReport { awaited, reported, .. }) = report {
        let call = NeededCall::Participation { sequence: awaited.sequence, reported };
        let needs_of_report = awaited.ranks.iter().filter(|&&rank| rank != me && rank < size);
        needs
            .extend(needs_of_report.map(|&rank| Need::from(RankNeed { rank, call: call.clone() })));
    }
    let title = format!("{} #{sequence}", descriptor.call_name());
    Some(CallState { needs, title, joining: None, issued_ago: entry.issued_ago() })
}

fn find_collective(group: &OpenGroup<'_>, sequence: u64) -> Option<EntrySnapshot> {
    let key = (group.id, group.rank as u64);
    recorder::newest_entries(recorder::MAX_ENTRIES).find(|entry| {
        (entry.group, entry.rank) == key && entry.is_collective() && entry.sequence() == sequence
    })
}
