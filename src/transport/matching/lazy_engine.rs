//! The lazy engine: an engine that is created by the first message. It saves memory and time,
//! because an engine has a link to every rank, and most groups never send a message.
//!
//! Until the engine exists, this object listens on the rank's message doorbell. The doorbell is a
//! word in shared memory. If a peer notifies the doorbell of a listening rank,
//! [`DoorbellListener::on_doorbell`] is called in the process of that rank. The callback then
//! creates the engine if a peer has written a message. If the notification has another reason, the
//! callback does nothing. The object listens before the group is ready for messages, so it misses
//! no message.
//!
//! This file does not depend on how an engine works.

use super::progress_owner::EngineCore;
use crate::base::error::{Error, Result};
use crate::base::sync::lock;
use crate::transport::{DoorbellListener, SharedDomain};
use crate::wait::doorbell::Doorbell;
use std::sync::{Arc, Mutex, OnceLock};

/// The engine of one rank, which may not exist yet. If it does not, all ranks of the group share
/// memory.
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

    /// Wraps an engine that exists already. The ranks of its group need not share memory.
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

    /// Leaves the group. After that, no engine is created.
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
            // The new engine listens on the doorbell itself.
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
        // This callback must not wait, because its caller may hold locks. If another thread holds
        // this lock, that thread is creating the engine, which then polls the rings, or it is
        // leaving the group. If the engine cannot be created, the next call of this rank returns
        // the error.
        if others.any(|rank| region.ring(rank, me).writer_cursor.position() != 0)
            && let Ok(has_left) = self.has_left.try_lock()
        {
            drop(self.create_core(*has_left));
        }
    }
}
