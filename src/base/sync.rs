//! The atomics of the protocols that are checked by exhaustive interleaving: std's, or under `--cfg loom` those of
//! the model checker. Everything else uses std's directly.

#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
