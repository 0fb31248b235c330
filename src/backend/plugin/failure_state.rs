//! The failure state of a plug-in's group. It keeps the first reason of a failure, and calls the
//! plug-in's abort function once.
//!
//! A reference to this state keeps neither the group nor the plug-in's communicator alive.

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
    /// The doorbell on which waiters of the group sleep. It is notified when the group fails, and
    /// when a message may be complete.
    doorbell: Doorbell,
}

impl PluginFailureState {
    /// Sets the communicator that the plug-in has created.
    pub(super) fn attach_communicator(&self, communicator: &Arc<dyn Communicator>) {
        // The bootstrap calls this function once, so the communicator is not set yet.
        drop(self.communicator.set(Arc::downgrade(communicator)));
    }

    /// Returns the failure of the group, if the library knows of one. Does not ask the plug-in.
    pub fn known_failure(&self) -> Option<&Error> {
        self.failure.get()
    }

    /// Returns the failure of the group. If the library knows of no failure, this function asks the
    /// plug-in. The plug-in's function may take some time, so only a thread that is waiting and
    /// holds no lock may call this function.
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
