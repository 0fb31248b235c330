//! The atomics and locks of the protocols that the model checker loom tests exhaustively. They are
//! std's types, or loom's types under `--cfg loom`. All other code uses std's types directly, and
//! locks a mutex with [`lock`].

use std::cell::UnsafeCell;
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

/// Plain memory. A protocol with atomics decides which thread may access it. Under loom, two
/// accesses that the protocol does not order make the model fail, unless both only read.
#[derive(Debug)]
pub struct ProtectedCell<T> {
    value: UnsafeCell<T>,
    #[cfg(loom)]
    accesses: loom::cell::UnsafeCell<()>,
}

impl<T> ProtectedCell<T> {
    /// Creates a cell with this value.
    pub fn new(value: T) -> Self {
        Self {
            value: UnsafeCell::new(value),
            #[cfg(loom)]
            accesses: loom::cell::UnsafeCell::new(()),
        }
    }

    /// Returns the address of the value for a read that follows at once.
    #[inline(always)]
    pub fn for_read(&self) -> *const T {
        #[cfg(loom)]
        self.accesses.with(|_| ());
        self.value.get()
    }

    /// Returns the address of the value for a write that follows at once.
    #[inline(always)]
    pub fn for_write(&self) -> *mut T {
        #[cfg(loom)]
        self.accesses.with_mut(|_| ());
        self.value.get()
    }
}

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(loom)]
pub use loom::sync::{Mutex, MutexGuard};
