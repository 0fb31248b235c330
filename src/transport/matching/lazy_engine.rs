//! The lazy engine: an engine that is created by the first message. Most groups never send a
//! message, and an engine has a link to every rank.
//!
//! Until then, this object listens on the doorbell for messages in the engine's place. It listens
//! before the group is ready, and the sender of a first message sends a wake request, so that no
//! message is missed. A wake request for any other reason creates no engine.
//!
//! Does not depend on the operation of an engine.

use super::progress_owner::EngineCore;
use crate::base::error::{Error, Result};
use crate::base::sync::lock;
use crate::transport::{DoorbellListener, SharedDomain};
use crate::wait::doorbell::Doorbell;
use std::sync::{Arc, Mutex, OnceLock};

/// An engine that may not exist yet, of a rank in a group whose ranks all share memory.
#[derive(Debug)]
pub(super) struct LazyEngine {
    domain: Arc<dyn SharedDomain>,
    allow_cma_read: bool,
    core: OnceLock<Arc<EngineCore>>,
    /// Set once the rank has left. Locked while the engine is created.
    has_left: Mutex<bool>,
}

impl LazyEngine {
    /// Creates the object and starts to listen.
    pub(super) fn new(domain: Arc<dyn SharedDomain>, allow_cma_read: bool) -> Arc<Self> {
        let (core, has_left) = (OnceLock::new(), Mutex::new(false));
        let engine = Arc::new(Self { domain, allow_cma_read, core, has_left });
        let listener: Arc<dyn DoorbellListener> = engine.clone();
        engine.domain.add_listener(Arc::downgrade(&listener));
        engine.doorbell().listen();
        engine
    }

    /// Creates the object of an engine that exists already. Its ranks need not share memory.
    pub(super) fn with_core(domain: Arc<dyn SharedDomain>, core: Arc<EngineCore>) -> Arc<Self> {
        let (core, has_left) = (OnceLock::from(core), Mutex::new(false));
        Arc::new(Self { domain, allow_cma_read: false, core, has_left })
    }

    /// Returns the engine, and creates it if needed.
    pub(super) fn core(&self) -> Result<&EngineCore> {
        if let Some(core) = self.core.get() {
            return Ok(core);
        }
        let has_left = lock(&self.has_left);
        self.create_core(*has_left)
    }

    /// Returns the engine, if it has been created.
    pub(super) fn existing_core(&self) -> Option<&EngineCore> {
        self.core.get().map(AsRef::as_ref)
    }

    /// Leaves the group: no engine is created any more.
    pub(super) fn leave(&self) {
        *lock(&self.has_left) = true;
        match self.existing_core() {
            Some(core) => core.leave(),
            None => self.doorbell().stop_listening(),
        }
    }

    /// Creates the engine unless it exists. The caller holds the lock of `has_left`.
    fn create_core(&self, has_left: bool) -> Result<&EngineCore> {
        if has_left && self.core.get().is_none() {
            return Err(Error::internal("a message was posted after this rank left the group"));
        }
        if self.core.get().is_none() {
            let core = EngineCore::new(Arc::clone(&self.domain), None, self.allow_cma_read)?;
            // The engine listens itself.
            self.doorbell().stop_listening();
            // `set` cannot fail: the cell was empty.
            drop(self.core.set(core));
        }
        self.existing_core().ok_or_else(|| Error::internal("the created engine is missing"))
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
        // This callback must not wait, because its caller may hold locks. If the lock is taken, its
        // holder polls the rings or leaves. If the engine cannot be created, the next call of this
        // rank returns the error.
        if others.any(|rank| region.ring(rank, me).writer_cursor.position() != 0)
            && let Ok(has_left) = self.has_left.try_lock()
        {
            drop(self.create_core(*has_left));
        }
    }
}
