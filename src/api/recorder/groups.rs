//! The groups that the process is in, and the last ones that it was in: what a dump says about
//! them.
//!
//! The list is bounded. A group's back end is asked only under the list's lock and while the group
//! is known not to have gone: leaving the list takes the same lock, and is the first thing that a
//! group which ends does. So nobody here is ever the last one to hold a back end, which could not
//! be taken down on every thread.
//!
//! Must not know: where dumps go.

use super::{files, short};
use crate::backend::{Backend, Place};
use crate::base::error::Error;
use crate::base::ids::{GroupId, Rank, WorldSize};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// How many groups are listed; where there are more, those go first that the process has left.
const MOST_GROUPS: usize = 1024;

/// How many members a dump names, of all groups together.
const MOST_MEMBERS: usize = 1 << 14;

/// A group that is new.
#[derive(Debug)]
pub(in crate::api) struct New<'a> {
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
pub(in crate::api) struct Membership {
    number: u64,
}

#[derive(Debug)]
struct Listed {
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
    is_told: bool,
}

#[derive(Debug)]
struct List {
    next: u64,
    groups: VecDeque<Listed>,
    /// How many are not listed any more, or never were.
    left_out: u64,
}

static LIST: Mutex<List> = Mutex::new(List { next: 0, groups: VecDeque::new(), left_out: 0 });

fn list() -> MutexGuard<'static, List> {
    LIST.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Membership {
    /// Lists a group.
    pub(in crate::api) fn of(new: &New<'_>) -> Self {
        let mut list = list();
        let number = list.next;
        list.next += 1;
        if list.groups.len() >= MOST_GROUPS {
            list.left_out += 1;
            let left = list.groups.iter().position(|group| group.backend.is_none());
            match left {
                Some(at) => drop(list.groups.remove(at)),
                None => return Self { number },
            }
        }
        list.groups.push_back(Listed {
            number,
            id: short(new.id),
            name: new.name.to_owned(),
            rank: new.rank,
            size: new.global_ranks.len(),
            parent: new.parent.map(str::to_owned),
            global_rank: new.global_ranks.get(new.rank).copied().unwrap_or(new.rank),
            global_ranks: new.global_ranks.to_vec(),
            backend: Some(Arc::downgrade(new.backend)),
            failure: None,
            is_told: false,
        });
        drop(list);
        files::group_begins();
        Self { number }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        // A failure that nobody has been told of is dumped while it is known who was in the group.
        files::dump_failures();
        let mut list = list();
        let found = list.groups.iter_mut().find(|group| group.number == self.number);
        if let Some(group) = found {
            group.look();
            group.backend = None;
            group.global_ranks = Vec::new();
            drop(list);
            files::group_ends();
        }
    }
}

impl Listed {
    /// Asks the back end why the group has failed.
    fn look(&mut self) {
        if self.failure.is_none() {
            let backend = self.backend.as_ref().and_then(Weak::upgrade);
            self.failure = backend.and_then(|backend| backend.failure());
        }
    }

    /// Whether it has failed, and nobody has asked that before.
    fn is_news(&mut self) -> bool {
        self.look();
        let is_news = self.failure.is_some() && !self.is_told;
        self.is_told |= is_news;
        is_news
    }

    fn describe(&self, room: &mut usize) -> Value {
        let backend = self.backend.as_ref().and_then(Weak::upgrade);
        let places = backend.as_ref().map(|backend| backend.places());
        let places = places.filter(|places| places.len() <= *room);
        *room -= places.map_or(0, <[Place]>::len);
        let member = |(place, global_rank): (&Place, &Rank)| {
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
pub(super) fn has_any_failed() -> bool {
    // All of them: each is news once.
    list().groups.iter_mut().fold(false, |any, group| group.is_news() | any)
}

/// What a dump says about one group or all, and how many it does not know.
pub(super) fn describe(wanted: Option<GroupId>) -> (Vec<Value>, u64) {
    let wanted = wanted.map(short);
    let mut list = list();
    let mut room = MOST_MEMBERS;
    let groups = list.groups.iter_mut().filter(|group| wanted.is_none_or(|id| id == group.id));
    let described = groups.map(|group| {
        group.look();
        group.describe(&mut room)
    });
    (described.collect(), list.left_out)
}

/// The name of the group with this part of its id, where it is listed.
pub(in crate::api) fn name_of(id: u64) -> Option<String> {
    let list = list();
    list.groups.iter().rev().find(|group| group.id == id).map(|group| group.name.clone())
}

/// The process's rank in its job and the size of that, as its oldest group has them that was made
/// from no other; one that it is in counts before those that it has left.
pub(super) fn identity() -> Option<(Rank, WorldSize)> {
    let list = list();
    let mut outermost = list.groups.iter().filter(|group| group.parent.is_none());
    let open = outermost.clone().find(|group| group.backend.is_some());
    let group = open.or_else(|| outermost.next_back())?;
    Some((group.global_rank, group.size))
}
