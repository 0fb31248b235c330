//! A ring of bytes from one rank of a domain to another: a stream in shared memory.
//!
//! One writer, one reader. Each keeps the position that it owns in memory of its own and only
//! publishes it, so that nothing which the other side writes is ever an index: the other's position
//! is a number that is compared with the own one, and nonsense (more bytes than the ring has) is an
//! error.
//!
//! Positions count bytes from the beginning and never wrap; the place of a byte is its position
//! modulo the size, a power of two. A writer that finds no room says so in its cursor, and the
//! reader rings for it once there is some (Dekker's pattern, as in
//! [`wait::doorbell`](crate::wait::bell)). Readers are always told of new bytes.
//!
//! A writer that knows that all is read leaves the rest of a lap out and *rewinds* to the beginning
//! of the ring, so that messages back and forth stay in a part of it that both cores have near. Its
//! cursor says from which position on the stream goes on, and a reader that has read all before
//! goes on there.
//!
//! What was put as a whole lies beside the writer's position too, as long as nothing has been put
//! after it, or the beginning of it: a reader that keeps up has that with the line that tells it of
//! it, and need not wait for another one.

mod inline_copy;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

pub use inline_copy::{INLINE_BODY_BYTES, InlineSnapshot};
pub use reader::RingReader;
pub use writer::RingWriter;

use super::region::Region;
use crate::base::buffer::{Dst, Src};
use crate::base::copy::Stager;
use crate::base::error::Error;
use crate::base::ids::Rank;
use inline_copy::InlineCopy;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What lies before the body of what is put as a whole, in words: one that says what it is,
/// nothing, the length of the body, and nothing.
pub type RecordHeader = [u64; 4];
const HEADER_BYTES: usize = size_of::<RecordHeader>();

/// How far one side has come. All zero bytes are a beginning.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct RingCursor {
    position: AtomicU64,
    /// In the writer's: it waits for room.
    waits_for_room: AtomicU32,
    /// In the writer's: where it went on when it rewound last. In the reader's: up to where it had
    /// read all there was, when it looked last.
    rewind_or_drained: AtomicU64,
    /// In the writer's.
    inline_copy: InlineCopy,
}

impl RingCursor {
    /// How far its owner says that it has come.
    pub fn position(&self) -> u64 {
        self.position.load(Ordering::Acquire)
    }
}

#[cfg(any(test, fuzzing))]
impl RingCursor {
    /// What a rank that has gone wrong says of its position.
    pub fn corrupt_position(&self, position: u64) {
        self.position.store(position, Ordering::Release);
    }
}

const _: () = assert!(size_of::<RingCursor>() == 128);

/// Where one ring lies.
#[derive(Clone, Copy, Debug)]
pub struct ByteRing<'a> {
    /// The writer's.
    pub writer_cursor: &'a RingCursor,
    /// The reader's.
    pub reader_cursor: &'a RingCursor,
    /// The bytes.
    pub bytes: Dst<'a>,
    /// When a writer rewinds.
    pub(super) rewind: &'a RewindPolicy,
}

/// Whether anything was ever written from one rank to another.
pub fn has_ever_written(region: &Region, from: Rank, to: Rank) -> bool {
    region.ring(from, to).writer_cursor.position() != 0
}

/// From whom to whom a ring leads, and whether it is the sender's lane.
#[derive(Clone, Copy, Debug)]
struct RingRoute {
    from: Rank,
    to: Rank,
    is_bulk: bool,
}

impl RingRoute {
    fn ring<'a>(&self, region: &'a Region) -> ByteRing<'a> {
        let Self { from, to, is_bulk: is_lane } = *self;
        if is_lane { region.bulk_ring(from, to) } else { region.ring(from, to) }
    }
}

/// After how many bytes a writer rewinds if it can, and before bodies up to which length. What was
/// in a core's cache a little while ago, another core takes longer to get than what has been out of
/// it ([`Reuse`](super::reuse::Reuse)): on a Xeon of the fourth generation messages of 2 to 64 KiB
/// take a fifth longer in a ring of 128 KiB, or in that part of one, than in one of 256 KiB, which
/// is the largest there is, and those up to 1 KiB a twentieth less. On an EPYC of the fourth those
/// of 8 KiB take 0.6 microseconds in a ring of 2 MiB, 1.9 in one of 256 KiB, and 1.1 in the first 4
/// KiB of one; those of 1 KiB take a fifth less there than elsewhere.
#[derive(Clone, Copy, Debug)]
pub(super) struct RewindPolicy {
    pub(super) rewind_after: u64,
    pub(super) max_short_body: usize,
    /// From where on in the ring longer bodies follow each other, apart from those that stay at its
    /// beginning.
    pub(super) long_body_offset: Option<usize>,
}

impl RewindPolicy {
    /// How far a reader comes before it tells that it has read everything, which a writer that goes
    /// on elsewhere has to know.
    fn report_interval(&self) -> u64 {
        if self.long_body_offset.is_some() { 1 } else { self.rewind_after }
    }
}

const CACHE_LINE_BYTES: usize = 64;

/// Into how many pieces, of which one can be written while another is read, what is streamed
/// divides a ring.
const STREAM_PIECES: usize = 16;

#[cold]
fn invalid_position_error() -> Error {
    Error::internal("a ring in shared memory claims more bytes than it has room for")
}

/// Where a position lies, and how many bytes there are from there to the end.
fn locate(bytes: Dst<'_>, position: u64) -> (usize, usize) {
    let size = bytes.len();
    // A power of two, of which the remainder needs no division.
    let start = usize::try_from(position & (size as u64).wrapping_sub(1)).unwrap_or(0);
    (start, size - start)
}

fn copy_in(stager: &mut Stager, bytes: Dst<'_>, position: u64, from: Src<'_>) {
    let (start, straight) = locate(bytes, position);
    if from.len() <= straight {
        return stager.stage(bytes.slice(start, from.len()), from);
    }
    stager.stage(bytes.slice(start, straight), from.slice(0, straight));
    let rest = from.len() - straight;
    stager.stage(bytes.slice(0, rest), from.slice(straight, rest));
}

fn copy_out(bytes: Dst<'_>, position: u64, into: Dst<'_>) {
    let (start, straight) = locate(bytes, position);
    if into.len() <= straight {
        return into.copy_from(bytes.as_src().slice(start, into.len()));
    }
    into.slice(0, straight).copy_from(bytes.as_src().slice(start, straight));
    let rest = into.len() - straight;
    into.slice(straight, rest).copy_from(bytes.as_src().slice(0, rest));
}
