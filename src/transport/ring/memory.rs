//! The memory of a byte ring: the cursors of the writer and of the reader, the bytes, and the
//! policy by which a writer rewinds (continues at the beginning of the ring). This module does not
//! depend on where that memory is, or on the code of the writer and the reader.

use super::inline_copy::InlineCopy;
#[cfg(not(loom))]
use super::inline_copy::OFFSET_IN_CURSOR;
use crate::base::buffer::{Dst, Src};
use crate::base::copy::Stager;
use crate::base::error::Error;
use crate::base::ids::Rank;
use crate::base::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// The header of a record. It has four words: a first word whose meaning the caller defines, 0, the
/// length of the body in bytes, and 0.
pub type RecordHeader = [u64; 4];
pub(super) const HEADER_BYTES: usize = size_of::<RecordHeader>();

/// The cursor of the writer or of the reader. A zeroed cursor is at the beginning of the stream.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct RingCursor {
    pub(super) position: AtomicU64,
    /// In the writer's cursor: not 0 while the writer waits for room. Unused in the reader's
    /// cursor.
    pub(super) waits_for_room: AtomicU32,
    /// In the writer's cursor: the position at which the stream continued after the last rewind.
    /// In the reader's cursor: the last position at which the reader reported the ring as drained
    /// (it had read all published bytes).
    pub(super) rewind_or_drained: AtomicU64,
    /// In the writer's cursor: the inline copy of the last record. Unused in the reader's cursor.
    pub(super) inline_copy: InlineCopy,
}

impl RingCursor {
    /// Returns the position that the owner has published.
    pub fn position(&self) -> u64 {
        self.position.load(Ordering::Acquire)
    }

    /// Publishes the position. The other side that finds this position also sees what the owner
    /// did before: bytes that the writer has written, or loads that the reader has completed.
    ///
    /// This is a release store, which reaches the cache line together with the stores before it. A
    /// sequentially consistent exchange would first wait for these stores, and a polling reader
    /// would take the line away during the wait.
    #[inline]
    pub(super) fn publish(&self, position: u64) {
        self.position.store(position, Ordering::Release);
    }

    /// In the writer's cursor: requests a wake-up from the reader. The writer must then load the
    /// reader's position again. If that position leaves no room, the reader finds the request.
    pub(super) fn request_room(&self) {
        self.waits_for_room.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// In the writer's cursor: takes the request for a wake-up. The reader calls this after it has
    /// published its position. Returns true if the reader must wake the writer.
    pub(super) fn take_room_request(&self) -> bool {
        fence(Ordering::SeqCst);
        self.waits_for_room.load(Ordering::Relaxed) != 0
            && self.waits_for_room.swap(0, Ordering::Relaxed) != 0
    }

    /// In the reader's cursor: reports that the reader has read all bytes before this position.
    pub(super) fn report_drained(&self, position: u64) {
        self.rewind_or_drained.store(position, Ordering::Release);
    }

    /// In the reader's cursor: returns whether the reader has reported that all bytes before this
    /// position are read. The writer may then write to the memory of these bytes.
    pub(super) fn is_drained(&self, position: u64) -> bool {
        self.rewind_or_drained.load(Ordering::Acquire) == position
    }

    /// In the writer's cursor: stores the position at which the stream continues. The reader uses
    /// it after the next published position.
    pub(super) fn rewind_to(&self, position: u64) {
        self.rewind_or_drained.store(position, Ordering::Relaxed);
    }

    /// In the writer's cursor: returns the position at which the stream continued after the last
    /// rewind. The reader first loads the writer's position.
    pub(super) fn last_rewind(&self) -> u64 {
        self.rewind_or_drained.load(Ordering::Relaxed)
    }
}

#[cfg(any(test, fuzzing))]
impl RingCursor {
    /// Stores an invalid position, as a faulty rank may do.
    pub fn corrupt_position(&self, position: u64) {
        self.position.store(position, Ordering::Release);
    }
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<RingCursor>() == 128);
#[cfg(not(loom))]
const _: () = assert!(std::mem::offset_of!(RingCursor, inline_copy) == OFFSET_IN_CURSOR);

/// The memory of one ring.
#[derive(Clone, Copy, Debug)]
pub struct ByteRing<'a> {
    /// The cursor of the writer.
    pub writer_cursor: &'a RingCursor,
    /// The cursor of the reader.
    pub reader_cursor: &'a RingCursor,
    /// The bytes of the ring.
    pub bytes: Dst<'a>,
    /// The policy by which the writer rewinds.
    pub(in crate::transport) rewind: &'a RewindPolicy,
}

/// The sender and the receiver of a ring, and whether it is the sender's bulk ring.
#[derive(Clone, Copy, Debug)]
pub struct RingRoute {
    /// The rank that writes.
    pub from: Rank,
    /// The rank that reads.
    pub to: Rank,
    /// Whether the ring is the bulk ring of `from`.
    pub is_bulk: bool,
}

/// The rewind policy of a ring: when a writer continues at the beginning of the ring. The writer
/// can do so only if the reader has reported that it has read all bytes.
///
/// A policy with a long-body area divides the ring in two. For example, a bulk ring of 1 MiB has:
///
/// ```text
/// offset  0 KiB             8 KiB                                1 MiB
///         |  short bodies   |  long bodies, one after another    |
/// ```
///
/// In the first area, the writer rewinds before a short body from offset 4 KiB on.
///
/// A core gets a line more slowly while another core's cache holds it than after the line has left
/// that cache ([`ReusePolicy`](crate::transport::ReusePolicy)). Measurements:
///
/// - Xeon, 4th generation, where the largest ring has 256 KiB. If messages use only 128 KiB, as a
///   whole ring or as a part of it, messages of 2 to 64 KiB take 20 % longer than in 256 KiB.
///   Messages of up to 1 KiB take 5 % less.
/// - EPYC, 4th generation. A message of 8 KiB takes 0.6 us in a ring of 2 MiB and 1.9 us in a ring
///   of 256 KiB. It takes 1.1 us in the first 4 KiB of a ring. Messages of 1 KiB take 20 % less
///   time in the first 4 KiB of a ring than elsewhere.
#[derive(Clone, Copy, Debug)]
pub(in crate::transport) struct RewindPolicy {
    /// The lowest offset from which the writer rewinds. Before this offset it just continues.
    pub(in crate::transport) rewind_after: u64,
    /// The length of the longest short body. The writer rewinds only before a short body.
    pub(in crate::transport) max_short_body: usize,
    /// The offset at which the long-body area begins, or `None` if the ring has no such area.
    /// Before a long body, the writer skips from the short bodies to this area.
    pub(in crate::transport) long_body_offset: Option<usize>,
}

impl RewindPolicy {
    /// Returns the minimum number of bytes between two reports in which a reader says that it has
    /// read everything. A writer needs such a report before it rewinds or skips to the long-body
    /// area.
    pub(super) fn report_interval(&self) -> u64 {
        if self.long_body_offset.is_some() { 1 } else { self.rewind_after }
    }
}

/// The number of pieces into which a streamed body divides a ring. The writer writes one piece
/// while the reader reads another.
pub(super) const STREAM_PIECES: usize = 16;

#[cold]
pub(super) fn invalid_position_error() -> Error {
    Error::internal(
        "a ring in shared memory has an invalid position: it claims more bytes than its capacity",
    )
}

/// Returns the offset of a position, and the number of bytes from there to the end of the ring.
pub(super) fn locate(bytes: Dst<'_>, position: u64) -> (usize, usize) {
    let size = bytes.len();
    // The size is a power of two, so a mask replaces the division.
    let start = usize::try_from(position & (size as u64).wrapping_sub(1)).unwrap_or(0);
    (start, size - start)
}

pub(super) fn copy_in(stager: &mut Stager, bytes: Dst<'_>, position: u64, from: Src<'_>) {
    let (start, until_end) = locate(bytes, position);
    if from.len() <= until_end {
        return stager.stage(bytes.slice(start, from.len()), from);
    }
    stager.stage(bytes.slice(start, until_end), from.slice(0, until_end));
    let rest = from.len() - until_end;
    stager.stage(bytes.slice(0, rest), from.slice(until_end, rest));
}

pub(super) fn copy_out(bytes: Dst<'_>, position: u64, into: Dst<'_>) {
    let (start, until_end) = locate(bytes, position);
    if into.len() <= until_end {
        return into.copy_from(bytes.as_src().slice(start, into.len()));
    }
    into.slice(0, until_end).copy_from(bytes.as_src().slice(start, until_end));
    let rest = into.len() - until_end;
    into.slice(until_end, rest).copy_from(bytes.as_src().slice(0, rest));
}
