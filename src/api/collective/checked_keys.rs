//! The table of the calls of a group that may take the fast path (a shorter code path for small
//! calls that repeat an earlier call).

use crate::backend::FastCallKey;
use std::sync::atomic::{AtomicU64, Ordering};

/// A key encodes the arguments of a call without its buffers. The table has the keys of calls that
/// have passed all checks, and whether the back end has a fast path for them.
///
/// The table works like a direct-mapped cache: each key can be in one slot only, and several keys
/// share a slot. If another key has replaced a key in its slot, the next call with the replaced key
/// is checked again.
#[derive(Debug, Default)]
pub(in crate::api) struct CheckedKeys([AtomicU64; FastCallKey::SLOTS]);

impl CheckedKeys {
    /// The bit that marks a key without a fast path. No key has this bit itself.
    const NO_FAST_PATH: u64 = 2;

    /// Returns whether calls with this key may take the fast path.
    #[inline]
    pub(super) fn contains(&self, key: FastCallKey) -> bool {
        self.0[key.slot()].load(Ordering::Relaxed) == key.word()
    }

    /// Returns whether the table does not have this key.
    pub(super) fn is_new(&self, key: FastCallKey) -> bool {
        self.0[key.slot()].load(Ordering::Relaxed) & !Self::NO_FAST_PATH != key.word()
    }

    pub(super) fn insert(&self, key: FastCallKey, has_fast_path: bool) {
        let mark = if has_fast_path { 0 } else { Self::NO_FAST_PATH };
        self.0[key.slot()].store(key.word() | mark, Ordering::Relaxed);
    }
}
