//! The groups that the process is in, and the last ones that it was in: what a dump says about
//! them.
//!
//! The list is bounded. A group's back end is asked only under the list's lock and while the group
//! is known not to have gone: leaving the list takes the same lock, and is the first thing that a
//! group which ends does. So nobody here is ever the last one to hold a back end, which could not
//! be taken down on every thread.
//!
//! Must not know: where dumps go.

use super::{dump_files, short_group_id};
use crate::backend::{Backend, RankLocation};
use crate::base::error::Error;
use crate::base::ids::{GroupId, Rank, WorldSize};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// How many groups are listed; where there are more, those go first that the process has left.
const MAX_LISTED_GROUPS: usize = 1024;

/// How many members a dump names, of all groups together.
const MAX_DUMPED_MEMBERS: usize = 1 << 14;

/// A group that is new.
#[derive(Debug)]
pub(in crate::api) struct NewGroup<'a> {
    pub(in crate::api) id: GroupId,
    pub(in crate::api) name: &'a str,
    pub(in crate::api) rank: Rank,
    /// Which ranks of the outermost group its ranks are.
    pub(in crate::api) global_ranks: &'a [Rank],
    /// The group that it was made from.
    pub(in crate::api) parent: Option<&'a str>,
    pub(in crate::api) backend: &'a Arc<dyn Backend>,
}

/// A group's place in the list; it counts as left when this is dropped.
#[derive(Debug)]
pub(in crate::api) struct RecorderMembership {
    number: u64,
}

#[derive(Debug)]
struct ListedGroup {
    number: u64,
    id: u64,
    name: String,
    rank: Rank,
    size: WorldSize,
    parent: Option<String>,
    /// This process's rank in the outermost group, and its members'; those only until it has been
    /// left.
    global_rank: Rank,
    global_ranks: Vec<Rank>,
    /// `None` once the group has been left.
    backend: Option<Weak<dyn Backend>>,
    failure: Option<Error>,
    /// Its failure is no news any more.
    is_reported: bool,
}

#[derive(Debug)]
struct GroupList {
    next_number: u64,
    groups: VecDeque<ListedGroup>,
    /// How many are not listed any more, or never were.
    unlisted: u64,
}

static LIST: Mutex<GroupList> =
    Mutex::new(GroupList { next_number: 0, groups: VecDeque::new(), unlisted: 0 });

fn lock_list() -> MutexGuard<'static, GroupList> {
    LIST.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RecorderMembership {
    /// Lists a group.
    pub(in crate::api) fn register(new: &NewGroup<'_>) -> Self {
        let mut list = lock_list();
        let number = list.next_number;
        list.next_number += 1;
        if list.groups.len() >= MAX_LISTED_GROUPS {
            list.unlisted += 1;
            let left = list.groups.iter().position(|group| group.backend.is_none());
            match left {
                Some(at) => drop(list.groups.remove(at)),
                None => return Self { number },
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
        drop(list);
        dump_files::add_group();
        Self { number }
    }
}

impl Drop for RecorderMembership {
    fn drop(&mut self) {
        // A failure that nobody has been told of is dumped while it is known who was in the group.
        dump_files::dump_failures_and_wait();
        let mut list = lock_list();
        let found = list.groups.iter_mut().find(|group| group.number == self.number);
        if let Some(group) = found {
            group.refresh_failure();
            group.backend = None;
            group.global_ranks = Vec::new();
            drop(list);
            dump_files::remove_group();
        }
    }
}

impl ListedGroup {
    /// Asks the back end why the group has failed.
    fn refresh_failure(&mut self) {
        if self.failure.is_none() {
            let backend = self.backend.as_ref().and_then(Weak::upgrade);
            self.failure = backend.and_then(|backend| backend.failure());
        }
    }

    /// Whether it has failed, and nobody has asked that before.
    fn take_new_failure(&mut self) -> bool {
        self.refresh_failure();
        let is_news = self.failure.is_some() && !self.is_reported;
        self.is_reported |= is_news;
        is_news
    }

    fn describe(&self, member_budget: &mut usize) -> Value {
        let backend = self.backend.as_ref().and_then(Weak::upgrade);
        let places = backend.as_ref().map(|backend| backend.rank_locations());
        let places = places.filter(|places| places.len() <= *member_budget);
        *member_budget -= places.map_or(0, <[RankLocation]>::len);
        let member = |(place, global_rank): (&RankLocation, &Rank)| {
            json!({
                "rank": place.name.rank,
                "pid": place.name.pid,
                "host": *place.name.host,
                "global_rank": global_rank,
            })
        };
        let members: Option<Vec<Value>> =
            places.map(|places| places.iter().zip(&self.global_ranks).map(member).collect());
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

/// Whether a group has failed that had not when this was last asked.
pub(super) fn has_new_failure() -> bool {
    // All of them: each is news once.
    lock_list().groups.iter_mut().fold(false, |any, group| group.take_new_failure() | any)
}

/// What a dump says about one group or all, and how many it does not know.
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

/// The name of the group with this part of its id, where it is listed.
pub(in crate::api) fn group_name(id: u64) -> Option<String> {
    let list = lock_list();
    list.groups.iter().rev().find(|group| group.id == id).map(|group| group.name.clone())
}

/// The process's rank in its job and the size of that, as its oldest group has them that was made
/// from no other; one that it is in counts before those that it has left.
pub(super) fn job_rank_and_size() -> Option<(Rank, WorldSize)> {
    let list = lock_list();
    let mut outermost = list.groups.iter().filter(|group| group.parent.is_none());
    let open = outermost.clone().find(|group| group.backend.is_some());
    let group = open.or_else(|| outermost.next_back())?;
    Some((group.global_rank, group.size))
}
