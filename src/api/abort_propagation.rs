//! Groups that were made from a group are aborted with it, and theirs with them.
//!
//! An abort is known to every rank's process by the group itself; each passes it on to the groups
//! that were made from it there. So it reaches every rank of them that is in the aborted group
//! still, also one that waits in the new group only, and through those the rest. Any other failure
//! stays where it is: a group that contains a rank that died finds that out by itself, and one that
//! does not goes on.
//!
//! Neither group keeps the other: each knows those made from it weakly, for as long as it has not
//! been released.
//!
//! Must not know: how a group fails, and how its ranks hear of it.

use crate::backend::{Backend, GroupFailureState};
use crate::base::error::{Error, ErrorKind, Result};
use crate::transport::DoorbellListener;
use crate::wait::service_task::ServiceTask;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// A group's place among its relatives.
#[derive(Debug)]
pub(super) struct AbortPropagator {
    group_name: String,
    /// `None` where the back end knows none.
    failure_state: Option<Arc<dyn GroupFailureState>>,
    children: Mutex<Vec<Weak<Self>>>,
    /// Passes an abort on; present once there have been children.
    deferred_propagation: OnceLock<ServiceTask>,
    /// The failure has been seen.
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

    /// A group has been made from this one.
    ///
    /// # Errors
    /// `System`.
    pub(super) fn add_child(self: &Arc<Self>, child: &Arc<Self>) -> Result<()> {
        let Some(failure_state) = &self.failure_state else { return Ok(()) };
        let mut children = self.children();
        children.retain(|known| known.strong_count() > 0);
        if self.deferred_propagation.get().is_none() {
            let lineage = Arc::downgrade(self);
            let propagate = move || lineage.upgrade().iter().for_each(|it| it.propagate_abort());
            // Set once, under the lock.
            drop(self.deferred_propagation.set(ServiceTask::new(propagate)?));
            let listener: Arc<dyn DoorbellListener> = Arc::clone(self) as Arc<dyn DoorbellListener>;
            failure_state.add_listener(Arc::downgrade(&listener));
        }
        children.push(Arc::downgrade(child));
        drop(children);
        // It may have happened meanwhile.
        self.propagate_abort();
        Ok(())
    }

    /// Aborts all that were made from this group, if it has been aborted.
    pub(super) fn propagate_abort(&self) {
        let failure = self.failure_state.as_ref().and_then(|fate| fate.failure());
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
                "group {}, made from group {parent}, ends with it: {reason}",
                self.group_name
            );
            failure_state.fail(&Error::new(ErrorKind::Aborted, message));
        }
        self.propagate_abort();
    }

    fn children(&self) -> std::sync::MutexGuard<'_, Vec<Weak<Self>>> {
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DoorbellListener for AbortPropagator {
    fn on_doorbell(&self) {
        let has_failed =
            || self.failure_state.as_ref().is_some_and(|fate| fate.failure().is_some());
        if !self.has_seen_failure.load(Ordering::Acquire)
            && has_failed()
            && !self.has_seen_failure.swap(true, Ordering::AcqRel)
        {
            self.deferred_propagation.get().into_iter().for_each(ServiceTask::wake);
        }
    }
}
