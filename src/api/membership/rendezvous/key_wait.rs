//! A wait for keys of a store that the waiting rank interrupts from time to time, to look for other
//! events.
//!
//! A store may have waits that another thread can end ([`StoreWaiter`]). Then one such wait lasts
//! for the whole time, on a thread of its own, and the rank looks for other events through the
//! store itself. Otherwise the rank waits in slices.

use crate::base::deadline::Deadline;
use crate::base::error::Result;
use crate::base::log::LogLevel;
use crate::base::sync::lock;
use crate::process::thread;
use crate::store::{Store, StoreWaiter, missing_keys};
use crate::wait::doorbell::Doorbell;
use crate::wait::{WaitPolicy, wait_until};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A wait for keys.
#[derive(Debug)]
pub(super) struct KeyWait<'a> {
    store: &'a dyn Store,
    keys: &'a [&'a [u8]],
    deadline: &'a Deadline,
    /// The wait on another thread, if the store supports it.
    background: Option<BackgroundWait>,
}

/// A wait on a thread of its own.
#[derive(Debug)]
struct BackgroundWait {
    waiter: Arc<dyn StoreWaiter>,
    result: Arc<WaitResult>,
}

/// The outcome of a wait on a thread of its own.
#[derive(Debug, Default)]
struct WaitResult {
    outcome: Mutex<Option<Result<()>>>,
    changed: Doorbell,
}

impl<'a> KeyWait<'a> {
    /// Begins to wait until all keys exist, at most until the deadline.
    pub(super) fn begin(
        store: &'a dyn Store,
        keys: &'a [&'a [u8]],
        deadline: &'a Deadline,
    ) -> Self {
        let background = match store.waiter(deadline) {
            Ok(waiter) => waiter.and_then(|waiter| BackgroundWait::start(waiter, keys, deadline)),
            Err(error) => {
                crate::log!(LogLevel::Info, "{} is polled: {error}", store.describe());
                None
            }
        };
        Self { store, keys, deadline, background }
    }

    /// Waits for at most this time. Returns whether all keys exist.
    ///
    /// # Errors
    /// The errors of [`Store::wait`]; `Timeout` only after the deadline of the whole wait.
    pub(super) fn wait(&self, slice: Duration) -> Result<bool> {
        let slice = self.deadline.capped(slice);
        let is_complete = match &self.background {
            Some(background) => background.wait(&slice)?,
            None => self.store.wait_slice(self.keys, &slice)?,
        };
        match is_complete {
            false if self.deadline.has_passed() => {
                Err(missing_keys(&self.store.describe(), self.keys, self.deadline))
            }
            is_complete => Ok(is_complete),
        }
    }
}

impl BackgroundWait {
    /// Starts the wait. Returns `None` if the system refuses another thread.
    fn start(waiter: Arc<dyn StoreWaiter>, keys: &[&[u8]], deadline: &Deadline) -> Option<Self> {
        let result = Arc::new(WaitResult::default());
        let owned: Vec<Vec<u8>> = keys.iter().map(|key| key.to_vec()).collect();
        let (for_thread, of_thread) = (Arc::clone(&waiter), Arc::clone(&result));
        let deadline = *deadline;
        let started = thread::start("dist-store-wait", move || {
            let keys: Vec<&[u8]> = owned.iter().map(Vec::as_slice).collect();
            let outcome = for_thread.wait(&keys, &deadline);
            *lock(&of_thread.outcome) = Some(outcome);
            of_thread.changed.notify();
        });
        started.is_ok().then_some(Self { waiter, result })
    }

    fn wait(&self, slice: &Deadline) -> Result<bool> {
        let take = || lock(&self.result.outcome).take();
        match wait_until(&self.result.changed, WaitPolicy::SLEEP_SOON, slice, || None, take) {
            Ok(outcome) => outcome.map(|()| true),
            Err(_) => Ok(false),
        }
    }
}

impl Drop for BackgroundWait {
    fn drop(&mut self) {
        self.waiter.interrupt();
    }
}
