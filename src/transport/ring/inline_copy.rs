//! What was put last into a ring, as a whole: beside the writer's position lies what its head says
//! and, where it is little, its body too, so that a reader that keeps up has them with the cache
//! line that tells it of them.
//!
//! A stamp says from which position on it lies in the ring. It is taken away before the rest is
//! written and set after that, so that a reader that finds the same one before and after it has
//! read has read what belongs to it.
//!
//! A body travels in words, from the memory of whoever puts it to the memory of whoever takes it:
//! bytes that are gathered on the way and read again at once, by loads that are not the stores,
//! would wait until these have left the core.

use super::{CACHE_LINE_BYTES, RingCursor};
use crate::base::buffer::{Dst, Src, WORD};
use crate::base::processor;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// How long a body that lies beside a position is at most: what fills two cache lines with it.
pub const INLINE_BODY_BYTES: usize = 88;
/// How much of it lies in the first one.
const FIRST_LINE_BODY_BYTES: usize =
    CACHE_LINE_BYTES - offset_of!(RingCursor, inline_copy) - offset_of!(InlineCopy, body);
/// How many bits of a stamp are one more than the length of the body. The others are the lowest of
/// the position, which come again after terabytes, when something else has long been put.
pub(super) const LEN_BITS: u32 = 24;
const LEN_MASK: u64 = (1 << LEN_BITS) - 1;

/// A copy of what was put last as a whole. Read while it is written, it is none.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct InlineCopy {
    /// 0 while it is written.
    pub(super) stamp: AtomicU64,
    first_word: AtomicU64,
    body: [AtomicU64; INLINE_BODY_BYTES / WORD],
}

/// What a reader has seen of it.
#[derive(Clone, Copy, Debug)]
pub struct InlineSnapshot {
    stamp: u64,
    /// The first word of its head.
    pub first_word: u64,
    /// The length of its body.
    pub len: usize,
}

impl InlineCopy {
    /// Asks for what a body of this length takes beyond the cache line that the reader looks at,
    /// which else would take that away while the writer waits for the other one.
    #[inline]
    pub(super) fn prefetch_write(&self, len: usize) {
        if (FIRST_LINE_BODY_BYTES + 1..=INLINE_BODY_BYTES).contains(&len) {
            processor::prefetch_to_write(self.second_line());
        }
    }

    /// Asks for that line, which has come with the other one, to be read.
    #[inline]
    pub(super) fn prefetch_read(&self, len: usize) {
        if len > FIRST_LINE_BODY_BYTES {
            processor::prefetch_to_read(self.second_line());
        }
    }

    fn second_line(&self) -> *const u8 {
        self.body[FIRST_LINE_BODY_BYTES / WORD..].as_ptr().cast()
    }

    /// Keeps what begins at a position.
    #[inline]
    pub(super) fn publish(&self, position: u64, first_word: u64, body: Src<'_>) {
        self.stamp.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        self.first_word.store(first_word, Ordering::Relaxed);
        if body.len() <= INLINE_BODY_BYTES {
            let starts = (0..body.len()).step_by(WORD);
            starts
                .zip(&self.body)
                .for_each(|(at, cell)| cell.store(body.word(at), Ordering::Relaxed));
        }
        let len = body.len() as u64 + 1;
        let stamp = if len <= LEN_MASK { position << LEN_BITS | len } else { 0 };
        self.stamp.store(stamp, Ordering::Release);
    }

    /// It is no more what was put last.
    pub(super) fn invalidate(&self) {
        self.stamp.store(0, Ordering::Relaxed);
    }

    /// What lies in the ring from this position on; `None` where that is not what was put last.
    #[inline]
    pub(super) fn snapshot(&self, position: u64) -> Option<InlineSnapshot> {
        let stamp = self.stamp.load(Ordering::Acquire);
        let len = usize::try_from((stamp & LEN_MASK).checked_sub(1)?).ok()?;
        let first = self.first_word.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let is_here = stamp & !LEN_MASK == position << LEN_BITS
            && self.stamp.load(Ordering::Relaxed) == stamp;
        is_here.then_some(InlineSnapshot { stamp, first_word: first, len })
    }

    /// Copies its body, which is as long as `into`; false where it does not lie here, or something
    /// else has been put meanwhile.
    #[inline]
    pub(super) fn copy_body(&self, snapshot: InlineSnapshot, into: Dst<'_>) -> bool {
        if snapshot.len > INLINE_BODY_BYTES || into.len() != snapshot.len {
            return false;
        }
        let starts = (0..into.len()).step_by(WORD);
        starts
            .zip(&self.body)
            .for_each(|(at, cell)| into.set_word(at, cell.load(Ordering::Relaxed)));
        fence(Ordering::Acquire);
        self.stamp.load(Ordering::Relaxed) == snapshot.stamp
    }
}
