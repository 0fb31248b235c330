//! Propagation of aborts: if a group is aborted, all groups derived from it are also aborted,
//! directly and in several steps.
//!
//! The steps, for a group P and a group D that was derived from P:
//! 1. P's back end informs the process of each rank of P about the abort.
//! 2. In each of these processes, P's propagator (this module) aborts D. This also ends the waits
//!    of a rank that waits only in D.
//! 3. D's back end informs the remaining ranks of D, which have already released P.
//!
//! Other failures are not propagated. If a rank died, a derived group that contains the rank
//! detects the death itself, and the other derived groups continue.
//!
//! Parent and child groups hold no strong references to each other. A parent has weak references to
//! its children until they are released.
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
