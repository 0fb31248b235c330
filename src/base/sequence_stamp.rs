//! The stamp of data in shared words that one thread writes and any thread reads at any time: a
//! sequence lock.
//!
//! The writer marks the data as incomplete, stores the words with relaxed ordering, and stores a
//! new stamp. A reader loads the stamp, then the words with relaxed ordering, and then the stamp
//! again. If the reader finds the same stamp of complete data twice, it has read the words that
//! belong to this stamp:
//!
//! - The writer's release store of the stamp orders the words before the stamp. So a reader that
//!   finds the stamp does not read older words.
//! - The writer's fence orders the mark before the words. So a reader that has read a newer word
//!   finds the mark, or a later stamp, in its second load: the reader's fence orders that load
//!   after the words.
//!
//! This module does not depend on the meaning of the stamps or of the words.

use super::sync::{AtomicU64, Ordering, fence};

/// The stamp of some shared words. A zeroed stamp is 0.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct SequenceStamp(AtomicU64);

impl SequenceStamp {
    /// Marks the data as incomplete. The writer calls this before it stores the words.
    #[inline]
    pub fn begin_write(&self, mark: u64) {
        self.0.store(mark, Ordering::Relaxed);
        fence(Ordering::Release);
    }

    /// Sets the stamp of the stored words.
    #[inline]
    pub fn end_write(&self, stamp: u64) {
        self.0.store(stamp, Ordering::Release);
    }

    /// Marks the data as invalid. No store of words follows.
    #[inline]
    pub fn invalidate(&self, mark: u64) {
        self.0.store(mark, Ordering::Relaxed);
    }

    /// Returns the stamp. A reader calls this before it loads the words.
    #[inline]
    pub fn begin_read(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Returns true if the words that the reader has loaded are those of this stamp.
    #[inline]
    pub fn is_unchanged(&self, stamp: u64) -> bool {
        fence(Ordering::Acquire);
        self.own() == stamp
    }

    /// Returns the stamp for the writer itself.
    #[inline]
    pub fn own(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
