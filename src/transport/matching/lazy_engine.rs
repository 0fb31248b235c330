//! An engine that is made once there is a message: most groups never send one, and an engine has a
//! link to every rank.
//!
//! Until then this listens in its place. It is there before the group is, and whoever sends the
//! first message knocks, so that none is missed. A knock for anything else makes no engine.
//!
//! Must not know: what an engine does.

use super::progress_owner::EngineCore;
use crate::base::error::{Error, Result};
use crate::transport::{DoorbellListener, SharedDomain, ring};
use crate::wait::doorbell::Doorbell;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The place of a rank's engine, where all ranks share memory.
#[derive(Debug)]
pub(super) struct LazyEngine {
    domain: Arc<dyn SharedDomain>,
    allow_cma_read: bool,
    core: OnceLock<Arc<EngineCore>>,
    /// The rank has left; locked while the engine is made.
    has_left: Mutex<bool>,
}

impl LazyEngine {
    /// Listens from now on.
    pub(super) fn new(domain: Arc<dyn SharedDomain>, allow_cma_read: bool) -> Arc<Self> {
        let (core, has_left) = (OnceLock::new(), Mutex::new(false));
        let engine = Arc::new(Self { domain, allow_cma_read, core, has_left });
        let listener: Arc<dyn DoorbellListener> = engine.clone();
        engine.domain.add_listener(Arc::downgrade(&listener));
        engine.doorbell().listen();
        engine
    }

    /// The engine, made if it is not there.
    pub(super) fn core(&self) -> Result<&EngineCore> {
        if let Some(core) = self.core.get() {
            return Ok(core);
        }
        let has_left = self.has_left.lock().unwrap_or_else(PoisonError::into_inner);
        self.create_core(*has_left)
    }

    /// The engine, if it was made.
    pub(super) fn existing_core(&self) -> Option<&EngineCore> {
        self.core.get().map(AsRef::as_ref)
    }

    /// The rank leaves: no engine is made any more.
    pub(super) fn leave(&self) {
        *self.has_left.lock().unwrap_or_else(PoisonError::into_inner) = true;
        match self.existing_core() {
            Some(core) => core.leave(),
            None => self.doorbell().stop_listening(),
        }
    }

    /// The caller has the lock.
    fn create_core(&self, has_left: bool) -> Result<&EngineCore> {
        if has_left && self.core.get().is_none() {
            return Err(Error::internal("a message after the group was left"));
        }
        if self.core.get().is_none() {
            let core = EngineCore::new(Arc::clone(&self.domain), None, self.allow_cma_read)?;
            // It listens itself.
            self.doorbell().stop_listening();
            // It was empty.
            drop(self.core.set(core));
        }
        self.existing_core().ok_or_else(|| Error::internal("an engine was made and is not there"))
    }

    fn doorbell(&self) -> &Doorbell {
        self.domain.region().message_doorbell(self.domain.rank())
    }
}

impl DoorbellListener for LazyEngine {
    fn on_doorbell(&self) {
        if self.core.get().is_some() {
            return;
        }
        let (region, me) = (self.domain.region(), self.domain.rank());
        let mut others = (0..self.domain.size()).filter(|&rank| rank != me);
        // Whoever has the lock looks at what has come, or leaves: nobody waits in here, where
        // others may hold locks. Where no engine can be made, the next call of this rank says why.
        if others.any(|rank| ring::has_ever_written(region, rank, me))
            && let Ok(has_left) = self.has_left.try_lock()
        {
            drop(self.create_core(*has_left));
        }
    }
}
