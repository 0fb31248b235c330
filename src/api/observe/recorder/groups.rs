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

use super::ring::short_group_id;
use crate::backend::{Backend, RankLocation};
use crate::base::error::Error;
use crate::base::ids::{GroupId, Rank, WorldSize};
use crate::base::sync::lock;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// The maximum number of listed groups. If the list is full, a new group replaces the oldest group
/// that the process has left. If the process is in all listed groups, the new group is not listed.
const MAX_LISTED_GROUPS: usize = 1024;

/// The maximum number of members that a dump lists, summed over all groups.
const MAX_DUMPED_MEMBERS: usize = 1 << 14;

/// A new group for the list.
#[derive(Debug)]
pub(in crate::api) struct NewGroup<'a> {
    pub(in crate::api) id: GroupId,
    pub(in crate::api) name: &'a str,
    pub(in crate::api) rank: Rank,
    /// The rank of each member in the outermost group.
    pub(in crate::api) global_ranks: &'a [Rank],
    /// The name of the parent group.
    pub(in crate::api) parent: Option<&'a str>,
    pub(in crate::api) backend: &'a Arc<dyn Backend>,
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
    global_ranks: Vec<Rank>,
    /// `None` once the group has been left.
    backend: Option<Weak<dyn Backend>>,
    failure: Option<Error>,
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
        global_ranks: new.global_ranks.to_vec(),
        backend: Some(Arc::downgrade(new.backend)),
        failure: None,
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
    group.backend = None;
    group.global_ranks = Vec::new();
    true
}

impl ListedGroup {
    /// Reads the failure of the group from its back end.
    fn refresh_failure(&mut self) {
        if self.failure.is_none() {
            let backend = self.backend.as_ref().and_then(Weak::upgrade);
            self.failure = backend.and_then(|backend| backend.failure());
        }
    }

    /// Returns true if the group has failed and this function has not returned true before.
    fn take_new_failure(&mut self) -> bool {
        self.refresh_failure();
        let is_news = self.failure.is_some() && !self.is_reported;
        self.is_reported |= is_news;
        is_news
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
            .map(|locations| locations.iter().zip(&self.global_ranks).map(member).collect());
        json!({
            "id": format!("{:016x}", self.id),
            "name": self.name,
            "rank": self.rank,
            "size": self.size,
            "parent": self.parent,
            "state": if self.backend.is_some() { "open" } else { "left" },
            "members": members,
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

/// Returns the name of the listed group with this short id.
pub(in crate::api) fn group_name(id: u64) -> Option<String> {
    let list = lock_list();
    list.groups.iter().rev().find(|group| group.id == id).map(|group| group.name.clone())
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
