//! How a plug-in's group fails: the first reason stays, and the plug-in is told once.
//!
//! Whoever shares the group's fate holds this, which keeps neither the group nor the plug-in's part
//! in it.

use super::super::{DoorbellListener, DoorbellListeners, GroupFailureState};
use super::Communicator;
use crate::base::error::Error;
use crate::wait::doorbell::Doorbell;
use std::sync::{Arc, OnceLock, Weak};

/// The failure of one group.
#[derive(Debug, Default)]
pub struct PluginFailureState {
    failure: OnceLock<Error>,
    communicator: OnceLock<Weak<dyn Communicator>>,
    listeners: DoorbellListeners,
    /// Rung when the group fails and when a message may have ended.
    doorbell: Doorbell,
}

impl PluginFailureState {
    /// The plug-in has made its part.
    pub(super) fn attach_communicator(&self, communicator: &Arc<dyn Communicator>) {
        // Called once, by whoever makes the group.
        drop(self.communicator.set(Arc::downgrade(communicator)));
    }

    /// Why the group has failed, as far as the library knows.
    pub fn known_failure(&self) -> Option<&Error> {
        self.failure.get()
    }

    /// Why it has failed, also as far as the plug-in has found out by itself. Runs a function of
    /// the plug-in, which may take some time: for those who wait anyway, and hold no lock.
    pub(super) fn query_failure(&self) -> Option<Error> {
        if self.failure.get().is_none() {
            let found = self.communicator().and_then(|communicator| communicator.failure());
            found.iter().for_each(|found| self.fail(found));
        }
        self.failure.get().cloned()
    }

    /// What whoever waits in the group may sleep on.
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
