//! The atomics and locks of the protocols that are checked by exhaustive interleaving: std's, or
//! under `--cfg loom` those of the model checker. Everything else uses std's directly.

#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(not(loom))]
pub use std::sync::{Mutex, MutexGuard};

/// What stands for a `fence(SeqCst)` between a sequentially consistent read-modify-write and a
/// sequentially consistent load, which are in the one order of such operations anyway: nothing, but
/// for the model checker, which takes them for weaker. A fence costs several times what the
/// read-modify-write does.
#[inline(always)]
pub fn fence_after_rmw() {
    #[cfg(loom)]
    fence(Ordering::SeqCst);
}

/// A `fence(SeqCst)`, at the price of a read-modify-write of a word that nobody else looks at.
#[inline(always)]
pub fn fence_with_rmw(word: &AtomicU64) {
    if cfg!(all(target_arch = "x86_64", not(loom))) {
        // Which is a whole fence there, and costs half of what the instruction does that is nothing
        // else.
        word.swap(0, Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// A `fence(SeqCst)` where a read-modify-write of any word has come since what is to be ordered.
#[inline(always)]
pub fn fence_after_any_rmw() {
    if cfg!(not(all(target_arch = "x86_64", not(loom)))) {
        fence(Ordering::SeqCst);
    }
    // Which was a whole fence there.
}

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(loom)]
pub use loom::sync::{Mutex, MutexGuard};
