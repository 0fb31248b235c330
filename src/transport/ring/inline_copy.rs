//! The inline copy of the last record of a ring, next to the writer's position. The copy has the
//! first word of the record's header and, if the body has at most [`INLINE_BODY_BYTES`] bytes, the
//! body. A reader that loads the cache line of the writer's position gets the copy with the same
//! line:
//!
//! ```text
//! bytes   0..64   position | waits for room | rewind | stamp | first word | body, bytes 0..24
//! bytes  64..128  body, bytes 24..88
//! ```
//!
//! The stamp has the position of the record and the length of its body. The writer clears the stamp
//! before it writes the copy, and sets the new stamp afterwards. If a reader finds the same stamp
//! before and after its read of the copy, the copy is consistent (a sequence lock).
//!
//! The body is copied word by word, directly from the sender's buffer and directly to the
//! receiver's buffer. The code avoids an intermediate byte buffer, because a core would write that
//! buffer by stores of one width and read it by loads of another width. Such a load cannot take its
//! value from the store buffer of the core. It waits until the stores have left the store buffer (a
//! store-forwarding stall).

use crate::base::buffer::{Dst, Src, WORD};
use crate::base::processor;
use crate::base::sequence_stamp::SequenceStamp;
use crate::base::sync::{AtomicU64, Ordering};

/// The size of a cache line.
pub(super) const CACHE_LINE_BYTES: usize = 64;

/// The offset of the copy in the cursor, after the cursor's other fields.
pub(super) const OFFSET_IN_CURSOR: usize = 24;

/// The length of the longest body in an inline copy. With this length, the cursor fills two cache
/// lines.
pub const INLINE_BODY_BYTES: usize = 88;
/// The number of body bytes in the first cache line.
const FIRST_LINE_BODY_BYTES: usize = CACHE_LINE_BYTES - OFFSET_IN_CURSOR - BODY_OFFSET;
/// The offset of the body in the copy, after the stamp and the first word.
const BODY_OFFSET: usize = 2 * WORD;
#[cfg(not(loom))]
const _: () = assert!(std::mem::offset_of!(InlineCopy, body) == BODY_OFFSET);
/// The number of low bits of a stamp that hold the length of the body plus 1. The other 40 bits are
/// the lowest bits of the position. They repeat only after 1 TiB, when many later records have
/// replaced the copy.
pub(super) const LEN_BITS: u32 = 24;
const LEN_MASK: u64 = (1 << LEN_BITS) - 1;

/// The copy of the last record. The stamp shows whether a read of the copy was consistent.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct InlineCopy {
    /// The stamp; 0 while the writer writes the copy.
    pub(super) stamp: SequenceStamp,
    first_word: AtomicU64,
    body: [AtomicU64; INLINE_BODY_BYTES / WORD],
}

/// The part of the copy that a reader has read before the body.
#[derive(Clone, Copy, Debug)]
pub struct InlineSnapshot {
    stamp: u64,
    /// The first word of the record's header.
    pub first_word: u64,
    /// The length of the record's body.
    pub len: usize,
}

impl InlineCopy {
    /// Prefetches the second cache line for a write, if a body of this length uses it. Without the
    /// prefetch, the writer would wait for the second line in the middle of the copy. In that time
    /// the reader, which polls the first line, would take the first line away.
    #[inline]
    pub(super) fn prefetch_write(&self, len: usize) {
        if (FIRST_LINE_BODY_BYTES + 1..=INLINE_BODY_BYTES).contains(&len) {
            processor::prefetch_to_write(self.second_line());
        }
    }

    /// Prefetches the second cache line for a read, if a body of this length uses it.
    #[inline]
    pub(super) fn prefetch_read(&self, len: usize) {
        if len > FIRST_LINE_BODY_BYTES {
            processor::prefetch_to_read(self.second_line());
        }
    }

    fn second_line(&self) -> *const u8 {
        self.body[FIRST_LINE_BODY_BYTES / WORD..].as_ptr().cast()
    }

    /// Publishes the copy of the record at a position.
    #[inline]
    pub(super) fn publish(&self, position: u64, first_word: u64, body: Src<'_>) {
        self.stamp.begin_write(0);
        self.first_word.store(first_word, Ordering::Relaxed);
        if body.len() <= INLINE_BODY_BYTES {
            let starts = (0..body.len()).step_by(WORD);
            starts
                .zip(&self.body)
                .for_each(|(at, cell)| cell.store(body.word(at), Ordering::Relaxed));
        }
        let len = body.len() as u64 + 1;
        let stamp = if len <= LEN_MASK { position << LEN_BITS | len } else { 0 };
        self.stamp.end_write(stamp);
    }

    /// Invalidates the copy. The writer calls this when it writes bytes that are no record.
    pub(super) fn invalidate(&self) {
        self.stamp.invalidate(0);
    }

    /// Returns a snapshot if the copy is that of the record at this position, otherwise `None`.
    #[inline]
    pub(super) fn snapshot(&self, position: u64) -> Option<InlineSnapshot> {
        let stamp = self.stamp.begin_read();
        let len = usize::try_from((stamp & LEN_MASK).checked_sub(1)?).ok()?;
        let first = self.first_word.load(Ordering::Relaxed);
        let is_here = stamp & !LEN_MASK == position << LEN_BITS && self.stamp.is_unchanged(stamp);
        is_here.then_some(InlineSnapshot { stamp, first_word: first, len })
    }

    /// Copies the body to `into`, which must have the length of the body. Returns false if the copy
    /// has no body, or if the writer has changed the copy since the snapshot.
    #[inline]
    pub(super) fn copy_body(&self, snapshot: InlineSnapshot, into: Dst<'_>) -> bool {
        if snapshot.len > INLINE_BODY_BYTES || into.len() != snapshot.len {
            return false;
        }
        let starts = (0..into.len()).step_by(WORD);
        starts
            .zip(&self.body)
            .for_each(|(at, cell)| into.set_word(at, cell.load(Ordering::Relaxed)));
        self.stamp.is_unchanged(snapshot.stamp)
    }
}
