//! The keys of the calls of a group that may take the fast path.

use crate::backend::FastCallKey;
use std::sync::atomic::{AtomicU64, Ordering};

/// The keys of calls that passed all checks except those of their buffers. Each key has one slot.
/// If another key has replaced it there, a call counts as new.
#[derive(Debug, Default)]
pub(in crate::api) struct CheckedKeys([AtomicU64; FastCallKey::SLOTS]);

impl CheckedKeys {
    #[inline]
    pub(super) fn contains(&self, key: FastCallKey) -> bool {
        self.0[key.slot()].load(Ordering::Relaxed) == key.word()
    }

    pub(super) fn insert(&self, key: FastCallKey) {
        if !self.contains(key) {
            self.0[key.slot()].store(key.word(), Ordering::Relaxed);
        }
    }
}
