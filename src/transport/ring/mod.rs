//! A byte ring in shared memory: a stream of bytes from one rank of a domain to another, with one
//! writer and one reader.
//!
//! - **Positions.** Positions count bytes from the beginning and never wrap. The offset of a byte
//!   in the ring is its position modulo the size, a power of two. Each side keeps its own position
//!   in private memory and only publishes it. The other side's position is never used as an index:
//!   it is compared with the own position, and an invalid one (more bytes than the ring has) is an
//!   error.
//! - **Wakeups.** The reader is always notified of new bytes. A writer that finds no room sets a
//!   flag in its cursor, and the reader wakes it once there is room. The flag and the position
//!   follow Dekker's pattern, as in [`wait::doorbell`](crate::wait::doorbell).
//! - **Rewind.** A writer that knows that all bytes are read may skip the rest of the ring and
//!   continue at its beginning. Messages back and forth then stay in a part of the ring that is in
//!   both cores' caches. The writer's cursor has the position at which the stream continues; a
//!   reader that has read everything before it continues there.
//! - **Records.** A record is a header with a body, written by one call. The last record is also
//!   copied next to the writer's position ([`inline_copy`]), completely or in part. A reader that
//!   keeps up gets the copy with the cache line that shows the new position, and needs no other
//!   line.

mod inline_copy;
pub(super) mod memory;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

pub use inline_copy::{INLINE_BODY_BYTES, InlineSnapshot};
pub use memory::{ByteRing, RecordHeader, RingCursor, RingRoute};
pub use reader::RingReader;
pub use writer::RingWriter;
