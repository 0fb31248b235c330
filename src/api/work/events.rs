//! Completion events of a group: a list of the completed works (asynchronous operations) that the
//! caller has not taken, and a file descriptor that is readable while the list has works.
//!
//! Only works with a handle (the caller's reference to a work) are listed, in the order of their
//! completion. When the caller releases a handle, its work is removed from the list. Therefore the
//! length of the list is bounded by the number of handles that exist.
//!
//! # No lost event
//! The list is created when the caller requests the descriptor for the first time. A work may end
//! at the same time, and must not be missing in the list. The two threads do the following:
//!
//! | thread that ends a work | thread that creates the list |
//! |---|---|
//! | 1. stores the outcome of the work | 1. stores the list in the group's queue |
//! | 2. fence (in the queue's doorbell) | 2. fence |
//! | 3. loads the list | 3. loads the outcome of each work that has a handle |
//!
//! Because of the fences, at least one of the two loads sees the store of the other thread. So at
//! least one thread adds the work. If both do, [`CompletionEvents::add`] ignores the second.
//!
//! # No released work
//! After a handle is released, its work must not be in the list. The release first clears the
//! handle in [`EventSlot`] and then removes the work under the lock of the list.
//! [`CompletionEvents::add`] reads the handle under the same lock. So `add` either runs before the
//! removal, which then removes the work, or it sees that there is no handle.
//!
//! This module does not depend on how a work ends or on what a handle is.

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
    /// Raised while `works` is not empty. `None` after the group has been released.
    signal: Option<PollableFlag>,
    /// The handles of the works. The keys ascend in the order of completion.
    works: BTreeMap<u64, usize>,
    /// The key that the next work gets.
    next_key: u64,
}

/// The fields of a work that the list uses.
#[derive(Debug, Default)]
pub(super) struct EventSlot {
    /// The caller's handle for the work, or 0 if there is none.
    pub(super) handle: AtomicUsize,
    /// The key of the work in the list, or 0 if the work was never listed. Accessed only under the
    /// lock of the list.
    key: AtomicU64,
}

impl CompletionEvents {
    pub(super) fn new() -> Result<Self> {
        let list =
            DoneWorks { signal: Some(PollableFlag::new()?), works: BTreeMap::new(), next_key: 1 };
        Ok(Self { done_works: Mutex::new(list) })
    }

    /// Adds a completed work. Does nothing if the work was already listed or has no handle, or if
    /// the group has been released.
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

    /// Removes up to `max_works` works from the list, oldest first, and returns their handles.
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

    /// Closes the descriptor and empties the list. Works that complete after this call are not
    /// listed.
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
