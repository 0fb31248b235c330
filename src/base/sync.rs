//! The atomics and locks of the protocols that the model checker loom tests exhaustively. They are
//! std's types, or loom's types under `--cfg loom`. All other code uses std's types directly, and
//! locks a mutex with [`lock`].

use std::sync::{
    LockResult, Mutex as StdMutex, MutexGuard as StdMutexGuard, PoisonError, TryLockError,
};

#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(not(loom))]
pub use std::sync::{Mutex, MutexGuard};

/// Locks a mutex, even if a thread has panicked while it held the lock.
///
/// The data behind each lock of the library is consistent at any time, so a panic does not leave
/// the data inconsistent.
pub fn lock<T: ?Sized>(mutex: &StdMutex<T>) -> StdMutexGuard<'_, T> {
    unpoisoned(mutex.lock())
}

/// Locks a mutex as [`lock`], unless a thread holds the lock.
pub fn try_lock<T: ?Sized>(mutex: &StdMutex<T>) -> Option<StdMutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Returns the guard from the outcome of a lock call, even if a thread has panicked while it held
/// the lock. Use this for a [`RwLock`](std::sync::RwLock), and for the [`Mutex`] of this module.
pub fn unpoisoned<G>(outcome: LockResult<G>) -> G {
    outcome.unwrap_or_else(PoisonError::into_inner)
}

/// Marks the place of a `fence(SeqCst)` between a sequentially consistent read-modify-write and a
/// sequentially consistent load. Compiled code needs no fence there: both operations are in the
/// single total order of sequentially consistent operations. A fence would cost several times as
/// much as the read-modify-write. Only under loom is this a fence, because loom models sequentially
/// consistent operations as weaker.
#[inline(always)]
pub fn fence_after_rmw() {
    #[cfg(loom)]
    fence(Ordering::SeqCst);
}

/// Acts as a `fence(SeqCst)`. On x86-64 the cost is only that of a read-modify-write of `word`,
/// which no other thread may access.
#[inline(always)]
pub fn fence_with_rmw(word: &AtomicU64) {
    if cfg!(all(target_arch = "x86_64", not(loom))) {
        // On x86-64 a read-modify-write is a full fence, at half the cost of the fence instruction.
        word.swap(0, Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// Acts as a `fence(SeqCst)` for the caller's earlier accesses, if the caller has executed a
/// read-modify-write of any word after these accesses.
#[inline(always)]
pub fn fence_after_any_rmw() {
    if cfg!(not(all(target_arch = "x86_64", not(loom)))) {
        fence(Ordering::SeqCst);
    }
    // On x86-64 the caller's read-modify-write was a full fence, so there is nothing to do.
}

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(loom)]
pub use loom::sync::{Mutex, MutexGuard};
