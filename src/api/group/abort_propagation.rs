//! Propagation of aborts: if a group is aborted, all groups derived from it are also aborted,
//! directly and in several steps.
//!
//! The steps, for a group P and a group D that was derived from P:
//! 1. P's back end informs the process of each rank of P about the abort.
//! 2. In each of these processes, P's propagator (this module) aborts D. This also ends the waits
//!    of a rank that waits only in D.
//! 3. D's back end informs the remaining ranks of D, which have already released P.
//!
//! Step 2 runs on the service thread, so a rank may release a group before it. Therefore a rank
//! that releases P or D first does step 2 itself. Otherwise a rank that waits in D would see that
//! the other rank has left, but not the abort that is the cause.
//!
//! Other failures are not propagated. If a rank died, a derived group that contains the rank
//! detects the death itself, and the other derived groups continue.
//!
//! Parent and child groups hold no strong references to each other. A parent has weak references to
//! its children until they are released, and a child has a weak reference to its parent.
//!
//! This module does not depend on how a group fails or how its ranks are informed.

use crate::backend::{Backend, GroupFailureState};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::sync::lock;
use crate::transport::DoorbellListener;
use crate::wait::service_task::ServiceTask;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// The propagator of one group. The propagators form a tree: the children of a group are the groups
/// derived from it.
#[derive(Debug)]
pub(in crate::api) struct AbortPropagator {
    group_name: String,
    /// `None` if the back end has no failure state.
    failure_state: Option<Arc<dyn GroupFailureState>>,
    /// Not set in a group that was not derived from another one.
    parent: OnceLock<Weak<Self>>,
    children: Mutex<Vec<Weak<Self>>>,
    /// The task on the service thread that propagates an abort. Set when the first child is added.
    deferred_propagation: OnceLock<ServiceTask>,
    /// True after the first doorbell that was caused by the group's failure.
    has_seen_failure: AtomicBool,
}

impl AbortPropagator {
    pub(super) fn new(name: &str, backend: &dyn Backend) -> Arc<Self> {
        Arc::new(Self {
            group_name: name.to_owned(),
            failure_state: backend.failure_state(),
            parent: OnceLock::new(),
            children: Mutex::default(),
            deferred_propagation: OnceLock::new(),
            has_seen_failure: AtomicBool::new(false),
        })
    }

    /// Adds a group that was derived from this group.
    ///
    /// # Errors
    /// `System`.
    pub(in crate::api) fn add_child(self: &Arc<Self>, child: &Arc<Self>) -> Result<()> {
        let Some(failure_state) = &self.failure_state else { return Ok(()) };
        let mut children = self.children();
        children.retain(|known| known.strong_count() > 0);
        if self.deferred_propagation.get().is_none() {
            let propagator = Arc::downgrade(self);
            let propagate = move || propagator.upgrade().iter().for_each(|it| it.propagate_abort());
            // No other thread sets the task concurrently, because the lock of `children` is held.
            drop(self.deferred_propagation.set(ServiceTask::new(propagate)?));
            let listener: Arc<dyn DoorbellListener> = Arc::clone(self) as Arc<dyn DoorbellListener>;
            failure_state.add_listener(Arc::downgrade(&listener));
        }
        children.push(Arc::downgrade(child));
        // A group is derived from one group only, so the cell is empty.
        drop(child.parent.set(Arc::downgrade(self)));
        drop(children);
        // The abort may have happened before the child was added.
        self.propagate_abort();
        Ok(())
    }

    /// Aborts all groups derived from this group, if this group was aborted.
    pub(super) fn propagate_abort(&self) {
        let failure = self.failure_state.as_ref().and_then(|state| state.failure());
        let Some(reason) = failure.filter(|it| it.kind() == ErrorKind::Aborted) else { return };
        let children = self.children().clone();
        children
            .iter()
            .filter_map(Weak::upgrade)
            .for_each(|it| it.abort_from_parent(&self.group_name, &reason));
    }

    /// Aborts this group and the groups derived from it, if a group from which it was derived was
    /// aborted. A rank does this before it leaves the group.
    pub(super) fn propagate_before_release(&self) {
        if let Some(parent) = self.parent.get().and_then(Weak::upgrade) {
            parent.propagate_before_release();
        }
        self.propagate_abort();
    }

    fn abort_from_parent(&self, parent: &str, reason: &Error) {
        let Some(failure_state) = &self.failure_state else { return };
        if failure_state.failure().is_none() {
            let message = format!(
                "group {} aborts because its parent group {parent} failed: {reason}",
                self.group_name
            );
            failure_state.fail(&Error::new(ErrorKind::Aborted, message));
        }
        self.propagate_abort();
    }

    fn children(&self) -> std::sync::MutexGuard<'_, Vec<Weak<Self>>> {
        lock(&self.children)
    }
}

/// Called by any thread when the group may have failed. The call must not block. Therefore it only
/// wakes the task on the service thread, at the first failure.
impl DoorbellListener for AbortPropagator {
    fn on_doorbell(&self) {
        let has_failed =
            || self.failure_state.as_ref().is_some_and(|state| state.failure().is_some());
        if !self.has_seen_failure.load(Ordering::Acquire)
            && has_failed()
            && !self.has_seen_failure.swap(true, Ordering::AcqRel)
        {
            self.deferred_propagation.get().into_iter().for_each(ServiceTask::wake);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::group::process_group::Group;
    use crate::backend::solo::SingleRankBackend;

    /// Returns a group whose back end never calls its listeners, so that nothing but a release can
    /// propagate an abort.
    fn group(name: &str) -> Group {
        Group::with_backend(name, Arc::new(SingleRankBackend::new()))
    }

    #[test]
    fn release_propagates_an_abort_before_the_service_thread() {
        for releases_parent in [false, true] {
            let (parent, child, grandchild) = (group("parent"), group("child"), group("grand"));
            parent.abort_propagator.add_child(&child.abort_propagator).unwrap();
            child.abort_propagator.add_child(&grandchild.abort_propagator).unwrap();
            let state = grandchild.backend.failure_state().unwrap();
            parent.backend.abort(&Error::new(ErrorKind::Aborted, "enough of this"));
            assert_eq!(state.failure(), None);
            let (_kept_parent, _kept_grandchild) = if releases_parent {
                drop(parent);
                (None, Some(grandchild))
            } else {
                drop(grandchild);
                (Some(parent), None)
            };
            let failure = state.failure().unwrap();
            assert_eq!(failure.kind(), ErrorKind::Aborted);
            assert!(failure.message().contains("enough of this"), "{failure}");
        }
    }

    #[test]
    fn release_propagates_no_other_failure() {
        let (parent, child) = (group("parent"), group("child"));
        parent.abort_propagator.add_child(&child.abort_propagator).unwrap();
        parent.backend.abort(&Error::new(ErrorKind::PeerFailed, "rank 1 died"));
        drop(parent);
        assert_eq!(child.failure(), None);
    }
}
