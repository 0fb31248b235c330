//! A byte ring in shared memory: a stream of bytes from one rank of a domain (the ranks of one
//! host) to another rank. A ring has one writer and one reader.
//!
//! - **Positions.** A position is the number of bytes from the beginning of the stream, and never
//!   wraps. The offset of a byte in the ring is its position modulo the size of the ring, a power
//!   of two. For example, position 70,000 is at offset 4,464 of a ring of 64 KiB. Each side keeps
//!   its own position in private memory, and publishes a copy in its *cursor*. A side never uses
//!   the published position of the other side as an index. It compares that position with its own
//!   position; if the two are further apart than the size of the ring, the published position is
//!   invalid, and the call returns an error.
//! - **Wakeups.** The writer wakes the reader after each publication. The reader wakes the writer
//!   only if the writer waits for room. For this, a writer that finds no room sets a flag in its
//!   cursor, and then loads the reader's position again. The reader publishes its position, and
//!   then loads the flag. Each side has a sequentially consistent fence between its store and its
//!   load, so at least one of the two loads sees the other side's store. This is Dekker's pattern,
//!   as in [`wait::doorbell`](crate::wait::doorbell).
//! - **Rewind.** A writer that knows that the reader has read all bytes may skip the rest of the
//!   ring and continue at offset 0. Messages that two ranks send to each other in turn then stay in
//!   a part of each ring that is in the caches of both cores. The writer stores the position at
//!   which the stream continues in its cursor. A reader that has read all bytes before the skipped
//!   part continues at that position.
//! - **Records.** A record is a header and a body, written by one call. The writer also copies the
//!   last record, completely or in part, into its cursor, next to its position ([`inline_copy`]).
//!   The reader loads this cache line to see the new position, and thus gets the copy with the same
//!   line. A reader that takes each record before the writer writes the next one therefore needs no
//!   other line for a short record.

mod inline_copy;
pub(super) mod memory;
#[cfg(all(test, loom))]
mod models;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

pub use inline_copy::{INLINE_BODY_BYTES, InlineSnapshot};
pub use memory::{ByteRing, RecordHeader, RingCursor, RingRoute};
pub use reader::RingReader;
pub use writer::RingWriter;
