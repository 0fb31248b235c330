//! The flight recorder's list of groups: the groups that the process is in, and the groups that it
//! has left most recently.
//!
//! The number of listed groups is bounded. This module must never drop the last reference to a back
//! end, because some threads cannot shut a back end down. Therefore it accesses a group's back end
//! only under the lock of the list and only before the group is marked as left. The first step of a
//! group's release is to take the same lock and to mark the group as left. So the group still holds
//! a reference during each access.
//!
//! This module does not depend on the dump files.

use super::ring::{MAX_ENTRIES, short_group_id};
use super::snapshot::newest_entries;
use crate::api::observe::call_history::{CallHistory, CallSum};
use crate::backend::{Backend, RankLocation};
use crate::base::debug::{self, DebugLevel};
use crate::base::error::Error;
use crate::base::ids::{GroupId, Rank, WorldSize};
use crate::base::sync::lock;
use crate::store::Store;
use crate::transport::{MessageCounts, RefusedMessages};
use serde_json::{Value, json};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// The maximum number of listed groups. If the list is full, a new group replaces the oldest group
/// that the process has left. If the process is in all listed groups, the new group is not listed.
const MAX_LISTED_GROUPS: usize = 1024;

/// The maximum number of calls in a [`CallSummary`].
const MAX_LAST_CALLS: usize = 16;

/// The maximum number of members that a dump lists, summed over all groups.
const MAX_DUMPED_MEMBERS: usize = 1 << 14;

/// A new group for the list.
#[derive(Debug)]
pub(in crate::api) struct NewGroup<'a> {
    pub(in crate::api) id: GroupId,
    pub(in crate::api) name: &'a str,
    pub(in crate::api) rank: Rank,
    /// The rank of each member in the outermost group.
    pub(in crate::api) global_ranks: &'a Arc<[Rank]>,
    /// The name of the parent group.
    pub(in crate::api) parent: Option<&'a str>,
    pub(in crate::api) backend: &'a Arc<dyn Backend>,
    pub(in crate::api) history: &'a Arc<CallHistory>,
    /// The queue of the group.
    pub(in crate::api) queue: Weak<dyn IssueCounter>,
    /// The rendezvous store of the outermost group.
    pub(in crate::api) store: Weak<dyn Store>,
}

/// Counts what a rank has issued in a group.
pub(in crate::api) trait IssueCounter: Send + Sync {
    /// Returns the number of collectives.
    fn issued(&self) -> u64;

    /// Returns whether all collectives have ended.
    fn is_idle(&self) -> bool;

    /// Returns the numbers of issued messages that are enqueued on a device.
    fn enqueued_messages(&self) -> MessageCounts;
}

crate::base::trait_object_debug::impl_debug_of_objects!(IssueCounter);

/// A group that the process is in, as [`visit_open_groups`] passes it. The list is locked.
pub(in crate::api) struct OpenGroup<'a> {
    /// The short id of the group.
    pub(in crate::api) id: u64,
    pub(in crate::api) name: &'a str,
    /// This process's rank in the group.
    pub(in crate::api) rank: Rank,
    /// The rank of each member in the outermost group.
    pub(in crate::api) global_ranks: &'a [Rank],
    /// The address of the group's queue, which identifies the group in this process.
    pub(in crate::api) queue: usize,
    /// The number of collectives that this process has issued.
    pub(in crate::api) issued: u64,
    /// Whether all these collectives have ended.
    pub(in crate::api) is_idle: bool,
    /// The counter of what this process has issued.
    pub(in crate::api) counter: &'a dyn IssueCounter,
    /// The back end. A visitor may keep it only if its thread may shut a back end down.
    pub(in crate::api) backend: &'a Arc<dyn Backend>,
    pub(in crate::api) store: &'a Weak<dyn Store>,
}

/// An operation of a group, for the comparison with the operations of the other ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::api) struct RecordedCall {
    /// The sequence number in the group.
    pub(in crate::api) sequence: u64,
    pub(in crate::api) hash: u64,
    pub(in crate::api) description: String,
}

/// The collectives that this process has called in one group, for the comparison with the calls of
/// the other ranks.
#[derive(Clone, Debug)]
pub(in crate::api) struct CallSummary {
    /// The short id of the group.
    pub(in crate::api) group: u64,
    pub(in crate::api) name: String,
    pub(in crate::api) rank: Rank,
    /// The error that failed the group.
    pub(in crate::api) failure: Option<Error>,
    /// True if the program has got the failure of the group from a call.
    pub(in crate::api) is_failure_known: bool,
    pub(in crate::api) sum: CallSum,
    /// The messages that receives have refused.
    pub(in crate::api) refused: RefusedMessages,
    /// The last operations of the history that the recorder still has, oldest first.
    pub(in crate::api) last_calls: Vec<RecordedCall>,
    history: Arc<CallHistory>,
}

#[derive(Debug)]
struct ListedGroup {
    number: u64,
    id: u64,
    name: String,
    rank: Rank,
    size: WorldSize,
    parent: Option<String>,
    /// This process's rank in the outermost group.
    global_rank: Rank,
    /// The rank of each member in the outermost group. Empty once the group has been left.
    global_ranks: Arc<[Rank]>,
    /// `None` once the group has been left.
    backend: Option<Weak<dyn Backend>>,
    failure: Option<Error>,
    /// The refused messages, if there are any; set when the group is left. Boxed, so that an idle
    /// group stays small.
    refused: Option<Box<RefusedMessages>>,
    queue: Weak<dyn IssueCounter>,
    store: Weak<dyn Store>,
    /// `None` once [`take_call_summaries`] has returned the calls.
    history: Option<Arc<CallHistory>>,
    /// True after [`Self::take_new_failure`] has returned the failure.
    is_reported: bool,
}

#[derive(Debug)]
struct GroupList {
    next_number: u64,
    groups: VecDeque<ListedGroup>,
    /// The number of groups that were removed from the list or never added to it.
    unlisted: u64,
}

static LIST: Mutex<GroupList> =
    Mutex::new(GroupList { next_number: 0, groups: VecDeque::new(), unlisted: 0 });

fn lock_list() -> MutexGuard<'static, GroupList> {
    lock(&LIST)
}

/// Adds a group to the list. Returns the group's number, and whether the group is in the list.
pub(super) fn add_to_list(new: &NewGroup<'_>) -> (u64, bool) {
    let mut list = lock_list();
    let number = list.next_number;
    list.next_number += 1;
    if list.groups.len() >= MAX_LISTED_GROUPS {
        list.unlisted += 1;
        let left = list.groups.iter().position(|group| group.backend.is_none());
        match left {
            Some(at) => drop(list.groups.remove(at)),
            None => return (number, false),
        }
    }
    list.groups.push_back(ListedGroup {
        number,
        id: short_group_id(new.id),
        name: new.name.to_owned(),
        rank: new.rank,
        size: new.global_ranks.len(),
        parent: new.parent.map(str::to_owned),
        global_rank: new.global_ranks.get(new.rank).copied().unwrap_or(new.rank),
        global_ranks: Arc::clone(new.global_ranks),
        backend: Some(Arc::downgrade(new.backend)),
        failure: None,
        refused: None,
        history: Some(Arc::clone(new.history)),
        queue: Weak::clone(&new.queue),
        store: Weak::clone(&new.store),
        is_reported: false,
    });
    (number, true)
}

/// Marks a group as left. Returns whether the group is in the list.
pub(super) fn mark_left(number: u64) -> bool {
    let mut list = lock_list();
    let Some(group) = list.groups.iter_mut().find(|group| group.number == number) else {
        return false;
    };
    group.refresh_failure();
    group.refresh_refused_messages();
    group.backend = None;
    group.global_ranks = Arc::default();
    true
}

impl ListedGroup {
    /// Reads the failure of the group from its back end.
    fn refresh_failure(&mut self) {
        if self.failure.is_none() {
            let backend = self.backend.as_ref().and_then(Weak::upgrade);
            self.failure =
                backend.and_then(|backend| backend.failure().or_else(|| backend.first_death()));
        }
    }

    /// Reads the refused messages from the back end of a group that has not been left.
    fn refresh_refused_messages(&mut self) {
        let backend = self.backend.as_ref().and_then(Weak::upgrade);
        if let Some(engine) = backend.as_ref().and_then(|backend| backend.point_to_point()) {
            let refused = engine.refused_messages();
            self.refused = (!refused.is_empty()).then(|| Box::new(refused));
        }
    }

    /// Returns true if the group has failed and this function has not returned true before.
    fn take_new_failure(&mut self) -> bool {
        self.refresh_failure();
        let is_news = self.failure.is_some() && !self.is_reported;
        self.is_reported |= is_news;
        is_news
    }

    /// Returns the calls in the group without the last calls, unless this function was called
    /// before.
    fn take_calls(&mut self) -> Option<CallSummary> {
        self.refresh_failure();
        self.refresh_refused_messages();
        let history = self.history.take()?;
        Some(CallSummary {
            group: self.id,
            name: self.name.clone(),
            rank: self.rank,
            failure: self.failure.clone(),
            is_failure_known: history.is_failure_known(),
            sum: history.sum(),
            refused: self.refused.take().map(|refused| *refused).unwrap_or_default(),
            last_calls: Vec::new(),
            history,
        })
    }

    /// Returns the group as JSON. Omits the members if there are more than `member_budget`;
    /// otherwise subtracts their number from it.
    fn describe(&self, member_budget: &mut usize) -> Value {
        let backend = self.backend.as_ref().and_then(Weak::upgrade);
        let locations = backend.as_ref().map(|backend| backend.rank_locations());
        let locations = locations.filter(|locations| locations.len() <= *member_budget);
        *member_budget -= locations.map_or(0, <[RankLocation]>::len);
        let member = |(location, global_rank): (&RankLocation, &Rank)| {
            json!({
                "rank": location.name.rank,
                "pid": location.name.pid,
                "host": *location.name.host,
                "global_rank": global_rank,
            })
        };
        let members: Option<Vec<Value>> = locations
            .map(|locations| locations.iter().zip(self.global_ranks.iter()).map(member).collect());
        // Few readers need the algorithms, and their description is long.
        let has_algorithms = debug::level() >= DebugLevel::Info;
        let algorithms = backend
            .as_ref()
            .filter(|_| has_algorithms)
            .map(|backend| backend.describe().get("algorithms").cloned().unwrap_or_default());
        json!({
            "id": format!("{:016x}", self.id),
            "name": self.name,
            "rank": self.rank,
            "size": self.size,
            "parent": self.parent,
            "state": if self.backend.is_some() { "open" } else { "left" },
            "members": members,
            "algorithms": algorithms,
            "failure": self.failure.as_ref().map(|error| json!({
                "kind": format!("{:?}", error.kind()),
                "message": error.message(),
                "culprit": error.culprit(),
            })),
        })
    }
}

/// Returns whether a group has failed since the last call of this function.
pub(super) fn has_new_failure() -> bool {
    // The fold does not stop at the first failure, because it must mark the failures of all groups.
    lock_list().groups.iter_mut().fold(false, |any, group| group.take_new_failure() | any)
}

/// Returns the JSON of one group or of all groups, and the number of groups that are not listed.
pub(super) fn describe_groups(wanted: Option<GroupId>) -> (Vec<Value>, u64) {
    let wanted = wanted.map(short_group_id);
    let mut list = lock_list();
    let mut member_budget = MAX_DUMPED_MEMBERS;
    let groups = list.groups.iter_mut().filter(|group| wanted.is_none_or(|id| id == group.id));
    let described = groups.map(|group| {
        group.refresh_failure();
        group.describe(&mut member_budget)
    });
    (described.collect(), list.unlisted)
}

/// Returns the size of each listed group by its short id.
pub(super) fn group_sizes() -> HashMap<u64, WorldSize> {
    lock_list().groups.iter().map(|group| (group.id, group.size)).collect()
}

/// Returns the calls in the groups that the process has left, in the groups that were derived from
/// other groups, and in group `world`. Each group is returned only once.
pub(in crate::api) fn take_call_summaries(world: GroupId) -> Vec<CallSummary> {
    let world = short_group_id(world);
    let mut list = lock_list();
    let is_ending = |group: &ListedGroup| {
        group.backend.is_none() || group.parent.is_some() || group.id == world
    };
    let ending = list.groups.iter_mut().filter(|group| group.size > 1 && is_ending(group));
    let mut summaries: Vec<CallSummary> = ending.filter_map(ListedGroup::take_calls).collect();
    drop(list);
    add_last_calls(&mut summaries);
    summaries
}

/// Returns the calls in one group, if the group is listed.
pub(in crate::api) fn take_call_summary(group: GroupId, rank: Rank) -> Option<CallSummary> {
    let id = short_group_id(group);
    let mut list = lock_list();
    let mut listed = list.groups.iter_mut().filter(|listed| (listed.id, listed.rank) == (id, rank));
    let mut summary = listed.find_map(ListedGroup::take_calls)?;
    drop(list);
    add_last_calls(std::slice::from_mut(&mut summary));
    Some(summary)
}

/// Adds the last calls of each group to its summary, as far as the recorder still has them.
fn add_last_calls(summaries: &mut [CallSummary]) {
    let mut by_key: HashMap<(u64, u64), &mut CallSummary> = summaries
        .iter_mut()
        .map(|summary| ((summary.group, summary.rank as u64), summary))
        .collect();
    for entry in newest_entries(MAX_ENTRIES).filter(|entry| entry.is_collective()) {
        let Some(summary) = by_key.get_mut(&(entry.group, entry.rank)) else { continue };
        let is_in_history = summary.history.contains(entry.sequence());
        if is_in_history && summary.last_calls.len() < MAX_LAST_CALLS {
            summary.last_calls.push(RecordedCall {
                sequence: entry.sequence(),
                hash: entry.call_hash(),
                description: entry.describe_operation(),
            });
        }
    }
    summaries.iter_mut().for_each(|summary| summary.last_calls.reverse());
}

/// Returns the name of the listed group with this short id.
pub(in crate::api) fn group_name(id: u64) -> Option<String> {
    let list = lock_list();
    list.groups.iter().rev().find(|group| group.id == id).map(|group| group.name.clone())
}

/// Calls `visit` for each listed group that the process is in, while the list is locked.
pub(in crate::api) fn visit_open_groups(mut visit: impl FnMut(&OpenGroup<'_>)) {
    for group in &lock_list().groups {
        let Some(backend) = group.backend.as_ref().and_then(Weak::upgrade) else { continue };
        let Some(queue) = group.queue.upgrade() else { continue };
        visit(&OpenGroup {
            id: group.id,
            name: &group.name,
            rank: group.rank,
            global_ranks: &group.global_ranks,
            queue: Arc::as_ptr(&queue).addr(),
            issued: queue.issued(),
            is_idle: queue.is_idle(),
            counter: queue.as_ref(),
            backend: &backend,
            store: &group.store,
        });
    }
}

/// Returns this process's rank in its job and the size of the job. The values come from the oldest
/// listed group without a parent that the process is in. If there is no such group, they come from
/// the newest listed group without a parent that the process has left.
pub(super) fn job_rank_and_size() -> Option<(Rank, WorldSize)> {
    let list = lock_list();
    let mut outermost = list.groups.iter().filter(|group| group.parent.is_none());
    let open = outermost.clone().find(|group| group.backend.is_some());
    let group = open.or_else(|| outermost.next_back())?;
    Some((group.global_rank, group.size))
}
