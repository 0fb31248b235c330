//! The failure state of a plug-in's group: the first reason stays, and the plug-in gets one abort
//! call.
//!
//! Owners of this state keep neither the group nor the plug-in's communicator alive.

use super::communicator::Communicator;
use crate::backend::{DoorbellListener, DoorbellListeners, GroupFailureState};
use crate::base::error::Error;
use crate::wait::doorbell::Doorbell;
use std::sync::{Arc, OnceLock, Weak};

/// The failure state of one group.
#[derive(Debug, Default)]
pub struct PluginFailureState {
    failure: OnceLock<Error>,
    communicator: OnceLock<Weak<dyn Communicator>>,
    listeners: DoorbellListeners,
    /// Rung when the group fails and when a message may be complete.
    doorbell: Doorbell,
}

impl PluginFailureState {
    /// Sets the communicator that the plug-in created.
    pub(super) fn attach_communicator(&self, communicator: &Arc<dyn Communicator>) {
        // The bootstrap calls this once.
        drop(self.communicator.set(Arc::downgrade(communicator)));
    }

    /// Returns the failure of the group that the library knows.
    pub fn known_failure(&self) -> Option<&Error> {
        self.failure.get()
    }

    /// Returns the failure of the group. If none is known, it asks the plug-in. The plug-in's
    /// function may take some time, so only threads that wait anyway and hold no lock call this.
    pub(super) fn query_failure(&self) -> Option<Error> {
        if self.failure.get().is_none() {
            let found = self.communicator().and_then(|communicator| communicator.failure());
            found.iter().for_each(|found| self.fail(found));
        }
        self.failure.get().cloned()
    }

    /// Returns the doorbell on which waiters of the group sleep.
    pub fn doorbell(&self) -> &Doorbell {
        &self.doorbell
    }

    fn communicator(&self) -> Option<Arc<dyn Communicator>> {
        self.communicator.get().and_then(Weak::upgrade)
    }
}

impl GroupFailureState for PluginFailureState {
    fn failure(&self) -> Option<Error> {
        self.failure.get().cloned()
    }

    fn fail(&self, reason: &Error) {
        if self.failure.set(reason.clone()).is_err() {
            return;
        }
        if let Some(communicator) = self.communicator() {
            communicator.abort(reason);
        }
        self.doorbell.notify();
        self.listeners.notify_all();
    }

    fn add_listener(&self, listener: Weak<dyn DoorbellListener>) {
        self.listeners.add(listener);
    }
}
