//! The keys of the calls of a group that may take the fast path.

use crate::backend::FastCallKey;
use std::sync::atomic::{AtomicU64, Ordering};

/// The keys of calls that passed all checks except those of their buffers, with a flag whether the
/// back end has a fast path for them. Each key has one slot. If another key has replaced it there,
/// a call counts as new.
#[derive(Debug, Default)]
pub(in crate::api) struct FastPathCache([AtomicU64; FastCallKey::SLOTS]);

impl FastPathCache {
    /// A flag in the slot: the back end has no fast path for the key. This bit is 0 in every key.
    const NO_FAST_PATH: u64 = 2;

    #[inline]
    pub(super) fn has_fast_path(&self, key: FastCallKey) -> bool {
        self.0[key.slot()].load(Ordering::Relaxed) == key.word()
    }

    pub(super) fn is_new(&self, key: FastCallKey) -> bool {
        self.0[key.slot()].load(Ordering::Relaxed) & !Self::NO_FAST_PATH != key.word()
    }

    pub(super) fn insert(&self, key: FastCallKey, has_fast_path: bool) {
        let flag = if has_fast_path { 0 } else { Self::NO_FAST_PATH };
        self.0[key.slot()].store(key.word() | flag, Ordering::Relaxed);
    }
}
