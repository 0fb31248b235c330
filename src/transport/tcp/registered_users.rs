//! [`RegisteredUsers`]: the ranks of this process that use links.

use super::link_user::{LinkUser, UserKey};
use crate::base::ids::{Nonce, Rank};
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// The registered ranks of a process, each in one group.
#[derive(Debug, Default)]
pub(super) struct RegisteredUsers {
    /// Each rank, with the number of ranks that had registered before it.
    by_key: HashMap<UserKey, (u64, Weak<dyn LinkUser>)>,
    next: u64,
}

impl RegisteredUsers {
    pub(super) fn insert(&mut self, key: UserKey, user: Weak<dyn LinkUser>) {
        self.by_key.insert(key, (self.next, user));
        self.next += 1;
    }

    pub(super) fn remove(&mut self, key: UserKey) {
        self.by_key.remove(&key);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// Returns a rank, if it is registered.
    pub(super) fn get(&self, key: UserKey) -> Option<&Weak<dyn LinkUser>> {
        self.by_key.get(&key).map(|(_, user)| user)
    }

    /// Returns a rank, if it is registered and exists.
    pub(super) fn find(&self, key: UserKey) -> Option<Arc<dyn LinkUser>> {
        self.get(key).and_then(Weak::upgrade)
    }

    /// Returns all ranks, the oldest first. The process at the other end of a link knows the oldest
    /// common group, but it may not know a group that is being made.
    pub(super) fn all(&self) -> Vec<Arc<dyn LinkUser>> {
        let mut users: Vec<_> = self.by_key.values().collect();
        users.sort_unstable_by_key(|(number, _)| *number);
        users.into_iter().filter_map(|(_, user)| user.upgrade()).collect()
    }

    /// Returns the ranks whose groups have a rank in a process, each with that rank.
    pub(super) fn with_rank_in(&self, process: Nonce) -> Vec<(Arc<dyn LinkUser>, Rank)> {
        let rank_there = |user: &Arc<dyn LinkUser>| {
            (0..).map_while(|rank| Some((rank, user.process_of(rank)?))).find(|it| it.1 == process)
        };
        let all = self.all().into_iter();
        all.filter_map(|user| rank_there(&user).map(|(rank, _)| (user, rank))).collect()
    }
}
