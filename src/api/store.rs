//! A store as callers hold it: the store, and the time-out that calls without one of their own use.

use crate::base::deadline::Deadline;
use crate::store::Store;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use crate::store::file::{FileOptions, FileStore};
pub use crate::store::tcp::{ClientOptions, ServerOptions, TcpStore};
pub use crate::store::{HashStore, PrefixStore};

/// The default time-out of a store call: five minutes, as in c10d.
pub const DEFAULT_TIMEOUT_MS: u64 = 300_000;

/// A store and its time-out.
#[derive(Debug)]
pub struct StoreHandle {
    store: Arc<dyn Store>,
    timeout_ms: AtomicU64,
}

impl StoreHandle {
    /// A handle with the default time-out.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store, timeout_ms: AtomicU64::new(DEFAULT_TIMEOUT_MS) }
    }

    /// The same handle with another time-out; 0 means the default.
    #[must_use]
    pub fn with_timeout(self, timeout_ms: u64) -> Self {
        self.set_timeout_ms(timeout_ms);
        self
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The time-out in milliseconds.
    pub fn timeout_ms(&self) -> u64 {
        self.timeout_ms.load(Ordering::Relaxed)
    }

    /// Sets the time-out; 0 means the default.
    pub fn set_timeout_ms(&self, timeout_ms: u64) {
        let ms = if timeout_ms == 0 { DEFAULT_TIMEOUT_MS } else { timeout_ms };
        self.timeout_ms.store(ms, Ordering::Relaxed);
    }

    /// The deadline of a call that begins now.
    pub fn deadline(&self) -> Deadline {
        Deadline::after_ms(self.timeout_ms())
    }

    /// The deadline of a call that begins now and names its own time-out; 0 means the handle's.
    pub fn deadline_of(&self, timeout_ms: u64) -> Deadline {
        Deadline::after_ms(if timeout_ms == 0 { self.timeout_ms() } else { timeout_ms })
    }

    /// A second handle on the same store.
    pub fn duplicate(&self) -> Self {
        Self::new(Arc::clone(&self.store)).with_timeout(self.timeout_ms())
    }
}
