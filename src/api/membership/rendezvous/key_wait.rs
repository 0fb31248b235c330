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
use crate::store::{Store, StoreWaiter};
use crate::wait::doorbell::Doorbell;
use crate::wait::{WaitPolicy, wait_until};
use std::sync::{Arc, Mutex};

/// A wait for keys.
pub(super) enum KeyWait<'a> {
    Sliced { store: &'a dyn Store, keys: &'a [&'a [u8]] },
    Interruptible { waiter: Arc<dyn StoreWaiter>, result: Arc<WaitResult> },
}

/// The outcome of a wait on a thread of its own.
#[derive(Debug, Default)]
pub(super) struct WaitResult {
    outcome: Mutex<Option<Result<()>>>,
    changed: Doorbell,
}

impl<'a> KeyWait<'a> {
    /// Begins to wait until all keys exist, at most until the deadline.
    pub(super) fn begin(store: &'a dyn Store, keys: &'a [&'a [u8]], deadline: &Deadline) -> Self {
        let waiter = match store.waiter(deadline) {
            Ok(Some(waiter)) => waiter,
            Ok(None) => return Self::Sliced { store, keys },
            Err(error) => {
                crate::log!(LogLevel::Info, "{} is polled: {error}", store.describe());
                return Self::Sliced { store, keys };
            }
        };
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
        match started {
            Ok(()) => Self::Interruptible { waiter, result },
            Err(_) => Self::Sliced { store, keys },
        }
    }

    /// Waits until all keys exist, or until the slice ends. Returns whether all keys exist.
    ///
    /// # Errors
    /// The errors of [`Store::wait`]; `Timeout` only if the whole wait has timed out.
    pub(super) fn wait(&self, slice: &Deadline) -> Result<bool> {
        match self {
            Self::Sliced { store, keys } => store.wait_slice(keys, slice),
            Self::Interruptible { result, .. } => {
                let take = || lock(&result.outcome).take();
                let policy = WaitPolicy::SLEEP_SOON;
                match wait_until(&result.changed, policy, slice, || None, take) {
                    Ok(outcome) => outcome.map(|()| true),
                    Err(_) => Ok(false),
                }
            }
        }
    }
}

impl Drop for KeyWait<'_> {
    fn drop(&mut self) {
        if let Self::Interruptible { waiter, .. } = self {
            waiter.interrupt();
        }
    }
}
