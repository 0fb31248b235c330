//! The atomics and locks of the protocols that the model checker tests exhaustively: those of std,
//! or under `--cfg loom` those of loom. All other code uses those of std directly, and takes them
//! with [`lock`].

use std::sync::{LockResult, Mutex as StdMutex, MutexGuard as StdMutexGuard, PoisonError};

#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(not(loom))]
pub use std::sync::{Mutex, MutexGuard};

/// Locks a mutex, even if a thread has panicked while it held the lock.
///
/// The data behind each lock of the library is consistent at any time, so a panic does not harm it.
pub fn lock<T: ?Sized>(mutex: &StdMutex<T>) -> StdMutexGuard<'_, T> {
    unpoisoned(mutex.lock())
}

/// Returns the guard of a lock, even if a thread has panicked while it held the lock. For a
/// [`RwLock`](std::sync::RwLock), and for the [`Mutex`] of this module.
pub fn unpoisoned<G>(outcome: LockResult<G>) -> G {
    outcome.unwrap_or_else(PoisonError::into_inner)
}

/// Replaces a `fence(SeqCst)` between a sequentially consistent read-modify-write and a
/// sequentially consistent load. Both are in the single total order of such operations, so no fence
/// is needed. Only the model checker needs one, because it models these operations as weaker. A
/// fence costs several times as much as the read-modify-write.
#[inline(always)]
pub fn fence_after_rmw() {
    #[cfg(loom)]
    fence(Ordering::SeqCst);
}

/// Acts as a `fence(SeqCst)`, at the price of a read-modify-write of a word that no other thread
/// accesses.
#[inline(always)]
pub fn fence_with_rmw(word: &AtomicU64) {
    if cfg!(all(target_arch = "x86_64", not(loom))) {
        // On x86-64 the read-modify-write is a full fence, at half the cost of the fence
        // instruction.
        word.swap(0, Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// Acts as a `fence(SeqCst)`, if a read-modify-write of any word has followed the accesses to be
/// ordered.
#[inline(always)]
pub fn fence_after_any_rmw() {
    if cfg!(not(all(target_arch = "x86_64", not(loom)))) {
        fence(Ordering::SeqCst);
    }
    // On x86-64 that read-modify-write was a full fence.
}

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(loom)]
pub use loom::sync::{Mutex, MutexGuard};
