//! What was put last into a ring, as a whole, where that is little: beside the writer's position, so that a reader that keeps up
//! has it with the cache line that tells it of it.
//!
//! A stamp says from which position on it lies in the ring. It is taken away before the bytes are written and set after them, so that
//! a reader that finds the same one before and after it has read has read what belongs to it.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// How many bytes lie beside a position at most: what fills two cache lines with it.
pub const NEWEST_BYTES: usize = 104;
pub(super) const LEN_BITS: u32 = 7;
const _: () = assert!(NEWEST_BYTES < 1 << LEN_BITS);

/// A copy of what was put last as a whole. Read while it is written, it is none.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Newest {
    /// From which position on it lies in the ring, and in the lowest bits its length; 0 while it is written.
    pub(super) stamp: AtomicU64,
    bytes: [AtomicU64; NEWEST_BYTES / 8],
}

impl Newest {
    /// Keeps what begins at a position.
    pub(super) fn keep(&self, position: u64, bytes: &[u8; NEWEST_BYTES], len: usize) {
        self.stamp.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        let words = bytes.as_chunks().0.iter().take(len.div_ceil(8));
        for (cell, word) in self.bytes.iter().zip(words) {
            cell.store(u64::from_le_bytes(*word), Ordering::Relaxed);
        }
        self.stamp.store(position << LEN_BITS | len as u64, Ordering::Release);
    }

    /// What lies in the ring from this position on, and its length; `None` where that is not what was put last.
    pub(super) fn read(&self, position: u64, into: &mut [u8; NEWEST_BYTES]) -> Option<usize> {
        let stamp = self.stamp.load(Ordering::Acquire);
        let len = usize::try_from(stamp & ((1 << LEN_BITS) - 1)).ok()?;
        if stamp >> LEN_BITS != position || len == 0 || len > NEWEST_BYTES {
            return None;
        }
        let words = into.as_chunks_mut().0.iter_mut().take(len.div_ceil(8));
        for (cell, word) in self.bytes.iter().zip(words) {
            *word = cell.load(Ordering::Relaxed).to_le_bytes();
        }
        fence(Ordering::Acquire);
        (self.stamp.load(Ordering::Relaxed) == stamp).then_some(len)
    }
}
