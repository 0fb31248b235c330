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

use crate::backend::{Backend, Fate};
use crate::base::error::{Error, ErrorKind, Result};
use crate::transport::Listener;
use crate::wait::nudge::Nudge;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// A group's place among its relatives.
#[derive(Debug)]
pub(super) struct Lineage {
    name: String,
    /// `None` where the back end knows none.
    fate: Option<Arc<dyn Fate>>,
    children: Mutex<Vec<Weak<Self>>>,
    /// Passes an abort on; present once there have been children.
    news: OnceLock<Nudge>,
    /// The failure has been seen.
    seen: AtomicBool,
}

impl Lineage {
    pub(super) fn new(name: &str, backend: &dyn Backend) -> Arc<Self> {
        Arc::new(Self {
            name: name.to_owned(),
            fate: backend.fate(),
            children: Mutex::default(),
            news: OnceLock::new(),
            seen: AtomicBool::new(false),
        })
    }

    /// A group has been made from this one.
    ///
    /// # Errors
    /// `System`.
    pub(super) fn adopt(self: &Arc<Self>, child: &Arc<Self>) -> Result<()> {
        let Some(fate) = &self.fate else { return Ok(()) };
        let mut children = self.children();
        children.retain(|known| known.strong_count() > 0);
        if self.news.get().is_none() {
            let lineage = Arc::downgrade(self);
            let pass_on = move || lineage.upgrade().iter().for_each(|it| it.pass_on());
            // Set once, under the lock.
            drop(self.news.set(Nudge::new(pass_on)?));
            let listener: Arc<dyn Listener> = Arc::clone(self) as Arc<dyn Listener>;
            fate.add_listener(Arc::downgrade(&listener));
        }
        children.push(Arc::downgrade(child));
        drop(children);
        // It may have happened meanwhile.
        self.pass_on();
        Ok(())
    }

    /// Aborts all that were made from this group, if it has been aborted.
    pub(super) fn pass_on(&self) {
        let failure = self.fate.as_ref().and_then(|fate| fate.failure());
        let Some(reason) = failure.filter(|it| it.kind() == ErrorKind::Aborted) else { return };
        let children = self.children().clone();
        children.iter().filter_map(Weak::upgrade).for_each(|it| it.inherit(&self.name, &reason));
    }

    fn inherit(&self, parent: &str, reason: &Error) {
        let Some(fate) = &self.fate else { return };
        if fate.failure().is_none() {
            let message =
                format!("group {}, made from group {parent}, ends with it: {reason}", self.name);
            fate.fail(&Error::new(ErrorKind::Aborted, message));
        }
        self.pass_on();
    }

    fn children(&self) -> std::sync::MutexGuard<'_, Vec<Weak<Self>>> {
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Listener for Lineage {
    fn on_knock(&self) {
        let has_failed = || self.fate.as_ref().is_some_and(|fate| fate.failure().is_some());
        if !self.seen.load(Ordering::Acquire)
            && has_failed()
            && !self.seen.swap(true, Ordering::AcqRel)
        {
            self.news.get().into_iter().for_each(Nudge::nudge);
        }
    }
}
