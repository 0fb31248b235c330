//! Completion events of a group: the completed works that the caller has not taken, and a
//! descriptor that is readable while there are any.
//!
//! Only works with a handle are listed, in the order of their completion. The list is bounded by
//! the number of live handles: the release of a handle removes its work.
//!
//! # No lost event
//! A work that ends stores its outcome, passes the fence of its queue's doorbell, and then checks
//! whether the group has a list. The first call for the descriptor publishes the list, passes a
//! fence, and then checks all works with handles. Therefore at least one of the two sees the other,
//! and [`CompletionEvents::add`] adds a work only once.
//!
//! # No released work
//! The release of a handle clears the work's token before it locks the list, and `add` reads the
//! token under the lock.
//!
//! This module does not depend on how a work ends, or on handles.

use crate::base::error::Result;
use crate::base::sync::{AtomicU64, AtomicUsize, Ordering, lock};
use crate::wait::pollable_flag::PollableFlag;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

/// The completed works of one group that the caller has not taken.
#[derive(Debug)]
pub(super) struct CompletionEvents {
    done_works: Mutex<DoneWorks>,
}

#[derive(Debug)]
struct DoneWorks {
    /// Raised while there are works; `None` once the group has been released.
    signal: Option<PollableFlag>,
    /// The handles of the works, in the order of completion.
    works: BTreeMap<u64, usize>,
    /// The key of the next work.
    next_key: u64,
}

/// The part of a work that the list uses.
#[derive(Debug, Default)]
pub(super) struct EventSlot {
    /// The caller's handle, or 0 if there is none.
    pub(super) handle: AtomicUsize,
    /// The key of the work in the list, or 0 if it was never listed. The lock of the list protects
    /// it.
    key: AtomicU64,
}

impl CompletionEvents {
    pub(super) fn new() -> Result<Self> {
        let list =
            DoneWorks { signal: Some(PollableFlag::new()?), works: BTreeMap::new(), next_key: 1 };
        Ok(Self { done_works: Mutex::new(list) })
    }

    /// Adds a completed work, unless it was listed before or has no handle.
    pub(super) fn add(&self, work: &EventSlot) {
        let mut list = self.lock();
        let handle = work.handle.load(Ordering::Acquire);
        if list.signal.is_none() || handle == 0 || work.key.load(Ordering::Relaxed) != 0 {
            return;
        }
        let key = list.next_key;
        list.next_key += 1;
        work.key.store(key, Ordering::Relaxed);
        if list.works.is_empty() {
            list.signal.iter().for_each(PollableFlag::raise);
        }
        list.works.insert(key, handle);
    }

    /// Removes a work whose handle was released.
    pub(super) fn remove(&self, work: &EventSlot) {
        let mut list = self.lock();
        let key = work.key.load(Ordering::Relaxed);
        if list.works.remove(&key).is_some() {
            list.clear_signal_if_empty();
        }
    }

    /// Takes up to `max_works` works in the order in which they ended.
    pub(super) fn take_oldest(&self, max_works: usize) -> Vec<usize> {
        let mut list = self.lock();
        let mut taken = Vec::with_capacity(max_works.min(list.works.len()));
        while taken.len() < max_works
            && let Some((_, handle)) = list.works.pop_first()
        {
            taken.push(handle);
        }
        list.clear_signal_if_empty();
        taken
    }

    /// Returns the descriptor, unless the group has been released.
    pub(super) fn descriptor(&self) -> Option<i32> {
        self.lock().signal.as_ref().map(PollableFlag::descriptor)
    }

    /// Closes the descriptor. Works that complete from now on are not listed.
    pub(super) fn close(&self) {
        let mut list = self.lock();
        list.signal = None;
        list.works.clear();
    }

    fn lock(&self) -> MutexGuard<'_, DoneWorks> {
        lock(&self.done_works)
    }
}

impl DoneWorks {
    fn clear_signal_if_empty(&self) {
        if self.works.is_empty() {
            self.signal.iter().for_each(PollableFlag::clear);
        }
    }
}
