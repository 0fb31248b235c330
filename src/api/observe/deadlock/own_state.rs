//! The state of this process for the examination of one blocked call.

use super::awaited_ranks::awaited_ranks;
use super::blocked_calls::{AwaitedOperation, BlockedCall, PublishedNeeds};
use super::blocked_record::GroupSnapshot;
use super::needs::{CallerRank, Need, NeededCall, RankNeed, needs_of_collective, needs_of_message};
use crate::api::observe::recorder::{self, EntrySnapshot, OpenGroup};
use crate::base::ids::Rank;
use crate::store::Store;
use crate::transport::MessageTraffic;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The state of this process.
#[derive(Debug)]
pub(super) struct OwnState {
    pub(super) caller: CallerRank,
    /// The rank of each member of the group in the outermost group.
    pub(super) global_ranks: Vec<Rank>,
    /// The keys of the members' processes.
    pub(super) processes: Vec<String>,
    /// The text of the call, for example "barrier #3 of group world".
    pub(super) text: String,
    /// What the call needs. The rank of this process comes first, and then the ranks after it.
    pub(super) needs: Vec<Need>,
    /// The group that the call creates.
    pub(super) joining: Option<(u64, String)>,
    /// All groups of the process.
    pub(super) groups: BTreeMap<u64, GroupSnapshot>,
    pub(super) store: Arc<dyn Store>,
    /// The time until the deadline of the call.
    pub(super) remaining: Duration,
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
    /// Reads the state. `published` is what the call has published. Returns `None` if the group is
    /// unknown or has no store.
    pub(super) fn read(call: &BlockedCall, published: Option<&PublishedNeeds>) -> Option<Self> {
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
            let state = GroupSnapshot::new(group.rank, group.issued, group.is_idle, &traffic);
            groups.insert(group.id, state);
            if is_own {
                own = Self::of_group(call, published, group, &traffic);
            }
        });
        own.map(|own| Self { groups, ..own })
    }

    /// Creates the state without the list of groups.
    fn of_group(
        call: &BlockedCall,
        published: Option<&PublishedNeeds>,
        group: &OpenGroup<'_>,
        traffic: &MessageTraffic,
    ) -> Option<Self> {
        let (me, size) = (group.rank, group.global_ranks.len());
        let mut state = match call.operation {
            AwaitedOperation::Collective { sequence } => collective_state(group, sequence)?,
            AwaitedOperation::Message { message, .. } => CallState {
                needs: needs_of_message(traffic, me, size),
                title: message.to_string(),
                ..CallState::default()
            },
            AwaitedOperation::Control => {
                let PublishedNeeds { title, needs, joining } = published?.clone();
                CallState { needs, title, joining, ..CallState::default() }
            }
        };
        let first_rank = |need: &Need| need.alternatives.first().map_or(me, |it| it.rank);
        state.needs.sort_by_key(|need| (first_rank(need) + size - me) % size);
        let timeout = call.timeout.map(|timeout| timeout.saturating_sub(state.issued_ago));
        let deadlines = call.deadlines.iter().flatten().map(|deadline| deadline.remaining());
        Some(Self {
            caller: CallerRank { group: group.id, rank: me },
            global_ranks: group.global_ranks.to_vec(),
            processes: group.backend.rank_locations().iter().map(process_key).collect(),
            text: format!("{} of group {}", state.title, group.name),
            needs: state.needs,
            joining: state.joining,
            groups: BTreeMap::new(),
            store: group.store.upgrade()?,
            remaining: timeout.into_iter().chain(deadlines).min().unwrap_or(Duration::MAX),
        })
    }
}

fn process_key(location: &crate::backend::RankLocation) -> String {
    format!("{}/{}", location.name.host, location.name.pid)
}

/// Returns the state of the collective with this sequence number.
fn collective_state(group: &OpenGroup<'_>, sequence: u64) -> Option<CallState> {
    let (me, size) = (group.rank, group.global_ranks.len());
    let entry = find_collective(group, sequence)?;
    let descriptor = entry.descriptor()?;
    let sizes = entry.details().collective_sizes(&descriptor, me, Some(size));
    let mut needs = needs_of_collective(&descriptor, &sizes, me, size);
    // The call waits for all earlier collectives of the group, too.
    let report = awaited_ranks(group.id, me).filter(|report| report.sequence <= sequence);
    if let Some(report) = report {
        let (sequence, reported) = (report.sequence, report.reported);
        let call = NeededCall::Participation { sequence, reported };
        let needs_of_report = report.ranks.iter().filter(|&&rank| rank != me && rank < size);
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
