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

use super::group::Group;
use super::work::Work;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::sync::{Ordering, fence, lock};
use crate::wait::pollable_flag::PollableFlag;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

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

impl CompletionEvents {
    fn new() -> Result<Self> {
        let list =
            DoneWorks { signal: Some(PollableFlag::new()?), works: BTreeMap::new(), next_key: 1 };
        Ok(Self { done_works: Mutex::new(list) })
    }

    /// Adds a completed work, unless it was listed before or has no handle.
    pub(super) fn add(&self, work: &Work) {
        let mut list = self.lock();
        let (handle, event_key) = (work.handle(), work.event_key());
        if list.signal.is_none() || handle == 0 || event_key.load(Ordering::Relaxed) != 0 {
            return;
        }
        let key = list.next_key;
        list.next_key += 1;
        event_key.store(key, Ordering::Relaxed);
        if list.works.is_empty() {
            list.signal.iter().for_each(PollableFlag::raise);
        }
        list.works.insert(key, handle);
    }

    /// Removes a work whose handle was released.
    pub(super) fn remove(&self, work: &Work) {
        let mut list = self.lock();
        let key = work.event_key().load(Ordering::Relaxed);
        if list.works.remove(&key).is_some() {
            list.clear_signal_if_empty();
        }
    }

    /// Takes up to `max_works` works in the order in which they ended.
    fn take_oldest(&self, max_works: usize) -> Vec<usize> {
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

    fn descriptor(&self) -> Option<i32> {
        self.lock().signal.as_ref().map(PollableFlag::descriptor)
    }

    fn close(&self) {
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

impl Group {
    /// Returns the descriptor that is readable while completed works of the group were not taken.
    /// `handled_works` returns the works that have handles; the first call calls it once.
    ///
    /// # Errors
    /// `System` if no further descriptor is available, `NotInitialized` if the group is being
    /// released.
    pub fn completion_descriptor(
        &self,
        handled_works: impl FnOnce() -> Vec<Arc<Work>>,
    ) -> Result<i32> {
        if self.queue.events().is_none() {
            self.queue.set_events(Arc::new(CompletionEvents::new()?));
            fence(Ordering::SeqCst);
            for work in handled_works() {
                work.report_if_done(&self.queue);
            }
        }
        let descriptor = self.queue.events().and_then(|events| events.descriptor());
        descriptor.ok_or_else(|| {
            let message =
                format!("group {} is being released and has no completion events", self.name());
            Error::new(ErrorKind::NotInitialized, message)
        })
    }

    /// Takes the handles of up to `max_works` completed works, in the order of their completion.
    /// Returns none if the group has no descriptor.
    pub fn take_done(&self, max_works: usize) -> Vec<usize> {
        self.queue.events().map_or_else(Vec::new, |events| events.take_oldest(max_works))
    }

    /// Closes the descriptor. Works that complete from now on are not listed.
    pub fn close_events(&self) {
        self.queue.events().into_iter().for_each(|events| events.close());
    }
}
