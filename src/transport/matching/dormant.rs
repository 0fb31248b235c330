//! An engine that is made once there is a message: most groups never send one, and an engine has a
//! link to every rank.
//!
//! Until then this listens in its place. It is there before the group is, and whoever sends the
//! first message knocks, so that none is missed. A knock for anything else makes no engine.
//!
//! Must not know: what an engine does.

use super::attendance::Core;
use crate::base::error::{Error, Result};
use crate::transport::{Listener, SharedDomain, ring};
use crate::wait::bell::Bell;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The place of a rank's engine, where all ranks share memory.
#[derive(Debug)]
pub(super) struct Dormant {
    domain: Arc<dyn SharedDomain>,
    may_be_read: bool,
    core: OnceLock<Arc<Core>>,
    /// The rank has left; locked while the engine is made.
    has_left: Mutex<bool>,
}

impl Dormant {
    /// Listens from now on.
    pub(super) fn new(domain: Arc<dyn SharedDomain>, may_be_read: bool) -> Arc<Self> {
        let (core, has_left) = (OnceLock::new(), Mutex::new(false));
        let dormant = Arc::new(Self { domain, may_be_read, core, has_left });
        let listener: Arc<dyn Listener> = dormant.clone();
        dormant.domain.add_listener(Arc::downgrade(&listener));
        dormant.bell().listen();
        dormant
    }

    /// The engine, made if it is not there.
    pub(super) fn core(&self) -> Result<&Core> {
        if let Some(core) = self.core.get() {
            return Ok(core);
        }
        let has_left = self.has_left.lock().unwrap_or_else(PoisonError::into_inner);
        self.make(*has_left)
    }

    /// The engine, if it was made.
    pub(super) fn made(&self) -> Option<&Core> {
        self.core.get().map(AsRef::as_ref)
    }

    /// The rank leaves: no engine is made any more.
    pub(super) fn leave(&self) {
        *self.has_left.lock().unwrap_or_else(PoisonError::into_inner) = true;
        match self.made() {
            Some(core) => core.leave(),
            None => self.bell().stop_listening(),
        }
    }

    /// The caller has the lock.
    fn make(&self, has_left: bool) -> Result<&Core> {
        if has_left && self.core.get().is_none() {
            return Err(Error::internal("a message after the group was left"));
        }
        if self.core.get().is_none() {
            let core = Core::new(Arc::clone(&self.domain), None, self.may_be_read)?;
            // It listens itself.
            self.bell().stop_listening();
            // It was empty.
            drop(self.core.set(core));
        }
        self.made().ok_or_else(|| Error::internal("an engine was made and is not there"))
    }

    fn bell(&self) -> &Bell {
        self.domain.region().message_bell(self.domain.rank())
    }
}

impl Listener for Dormant {
    fn on_knock(&self) {
        if self.core.get().is_some() {
            return;
        }
        let (region, me) = (self.domain.region(), self.domain.rank());
        let mut others = (0..self.domain.size()).filter(|&rank| rank != me);
        // Whoever has the lock looks at what has come, or leaves: nobody waits in here, where
        // others may hold locks. Where no engine can be made, the next call of this rank says why.
        if others.any(|rank| ring::has_begun(region, rank, me))
            && let Ok(has_left) = self.has_left.try_lock()
        {
            drop(self.make(*has_left));
        }
    }
}
