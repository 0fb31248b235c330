//! The reader of a byte ring.

use super::inline_copy::{CACHE_LINE_BYTES, InlineSnapshot};
use super::memory::{
    ByteRing, HEADER_BYTES, RingRoute, STREAM_PIECES, copy_out, invalid_position_error, locate,
};
use crate::base::buffer::Dst;
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use crate::base::processor;
use crate::transport::region::Region;
use crate::wait::policy::spin_until;

/// The reader of a byte ring.
#[derive(Debug)]
pub struct RingReader {
    route: RingRoute,
    /// The read position: all bytes before it are read.
    position: u64,
    /// The released position. The reader has published it, so that the writer can reuse the room
    /// before it, and has then checked whether the writer waits for room.
    released: u64,
    /// The writer's position when this reader last loaded it.
    written: u64,
    /// The last position that this reader reported as drained. The writer needs the report to
    /// rewind.
    pub(super) reported: u64,
}

impl RingReader {
    /// Creates the reader of the ring from one rank to another, at its beginning.
    pub fn new(from: Rank, to: Rank) -> Self {
        Self::with_route(RingRoute { from, to, is_bulk: false })
    }

    /// Creates the reader of a rank's bulk ring for another rank, at its beginning.
    pub fn new_bulk(from: Rank, to: Rank) -> Self {
        Self::with_route(RingRoute { from, to, is_bulk: true })
    }

    fn with_route(route: RingRoute) -> Self {
        Self { route, position: 0, released: 0, written: 0, reported: 0 }
    }

    /// Reads as many of the available bytes as fit into `into`. Returns the number of bytes read.
    ///
    /// # Errors
    /// `Internal` if the writer's position is invalid.
    pub fn read(&mut self, region: &Region, into: Dst<'_>) -> Result<usize> {
        let ring = region.ring_on(self.route);
        if self.written == self.position {
            self.refresh(&ring)?;
        }
        let len = self.available(&ring)?.min(into.len());
        copy_out(ring.bytes, self.position, into.slice(0, len));
        self.position += len as u64;
        Ok(len)
    }

    /// Reads bytes until `into` is full, while the writer writes more bytes. If the ring is empty,
    /// the reader polls up to `polls` times, and returns if no bytes arrive. Returns the number of
    /// bytes read. The caller must [release](RingReader::release) these bytes.
    ///
    /// # Errors
    /// As [`RingReader::read`].
    pub fn read_stream(&mut self, region: &Region, polls: u32, into: Dst<'_>) -> Result<usize> {
        let ring = region.ring_on(self.route);
        let piece = ring.bytes.len() / STREAM_PIECES;
        let mut taken = 0;
        while taken < into.len() && spin_until(polls, || self.has_more(&ring)) {
            taken += self.read(region, into.slice(taken, (into.len() - taken).min(piece)))?;
            // A writer that polls for room sees the new position immediately. For a writer that
            // sleeps, the caller releases the bytes later.
            ring.reader_cursor.publish(self.position);
        }
        Ok(taken)
    }

    /// Polls up to `polls` times until bytes have arrived. If they have arrived, prefetches the
    /// inline copy of a body of up to `len` bytes.
    #[inline]
    pub fn poll_for(&self, ring: &ByteRing<'_>, len: usize, polls: u32) {
        if spin_until(polls, || self.has_more(ring)) {
            ring.writer_cursor.inline_copy.prefetch_read(len);
        }
    }

    /// Returns whether bytes have arrived that this reader has not read.
    #[inline]
    pub fn has_more(&self, ring: &ByteRing<'_>) -> bool {
        ring.writer_cursor.position() != self.position
    }

    /// Returns a snapshot of the inline copy if the unread bytes are exactly the record of that
    /// copy.
    ///
    /// # Errors
    /// As [`RingReader::read`].
    pub fn peek_inline(&mut self, ring: &ByteRing<'_>) -> Result<Option<InlineSnapshot>> {
        let unread = self.refresh(ring)?;
        let newest = ring.writer_cursor.inline_copy.snapshot(self.position);
        Ok(newest.filter(|newest| unread == HEADER_BYTES + newest.len))
    }

    /// Takes the record of a snapshot: copies its body to `into`, which must have the length of the
    /// body.
    ///
    /// # Errors
    /// As [`RingReader::take_peeked`].
    pub fn take_inline(
        &mut self,
        ring: &ByteRing<'_>,
        seen: InlineSnapshot,
        into: Dst<'_>,
    ) -> Result<()> {
        if !ring.writer_cursor.inline_copy.copy_body(seen, into) {
            return match self.take_peeked(ring, HEADER_BYTES, 0, into)? {
                true => Ok(()),
                false => Err(Error::internal("the ring has fewer bytes than were peeked")),
            };
        }
        self.position += (HEADER_BYTES + seen.len) as u64;
        self.report_drained(ring);
        Ok(())
    }

    /// Skips `len` bytes that were peeked before.
    ///
    /// # Errors
    /// `Internal` if fewer bytes have arrived.
    pub fn skip(&mut self, ring: &ByteRing<'_>, len: usize) -> Result<()> {
        if self.available(ring)? < len {
            return Err(Error::internal("the ring has fewer bytes than were peeked"));
        }
        self.position += len as u64;
        Ok(())
    }

    /// Returns the ring of this reader.
    pub fn ring<'a>(&self, region: &'a Region) -> ByteRing<'a> {
        region.ring_on(self.route)
    }

    /// Returns the read position.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Takes the `seen` bytes that [`RingReader::peek`] has copied, and copies the bytes after them
    /// to `into` as they arrive. Polls up to `polls` times for the next bytes. If they do not
    /// arrive in that time, returns false and leaves all bytes in the ring, including the `seen`
    /// bytes.
    ///
    /// # Errors
    /// As [`RingReader::read`].
    pub fn take_peeked(
        &mut self,
        ring: &ByteRing<'_>,
        seen: usize,
        polls: u32,
        into: Dst<'_>,
    ) -> Result<bool> {
        let mut taken = 0;
        while taken < into.len() {
            let arrived = self.available(ring)?.saturating_sub(seen).min(into.len());
            if arrived < taken {
                return Err(invalid_position_error());
            }
            copy_out(
                ring.bytes,
                self.position + (seen + taken) as u64,
                into.slice(taken, arrived - taken),
            );
            taken = arrived;
            if taken < into.len() {
                let written = self.written;
                if !spin_until(polls, || ring.writer_cursor.position() != written) {
                    return Ok(false);
                }
                self.refresh(ring)?;
            }
        }
        self.position += (seen + taken) as u64;
        self.report_drained(ring);
        Ok(true)
    }

    /// Fills `into` with the next bytes, without taking them from the ring. Returns the number of
    /// unread bytes, or 0 if fewer bytes than `into` can hold have arrived.
    ///
    /// # Errors
    /// As [`RingReader::read`].
    pub fn peek(&mut self, ring: &ByteRing<'_>, into: Dst<'_>) -> Result<usize> {
        let unread = self.refresh(ring)?;
        if unread < into.len() {
            return Ok(0);
        }
        // Prefetch all lines together. Otherwise this core would request the lines after the header
        // only after the header has arrived.
        prefetch_lines(ring.bytes, self.position, unread).for_each(processor::prefetch_to_read);
        copy_out(ring.bytes, self.position, into);
        Ok(unread)
    }

    /// Loads the writer's position. If the writer has rewound the ring, this reader continues at
    /// the new position. Returns the number of unread bytes.
    #[inline]
    pub(super) fn refresh(&mut self, ring: &ByteRing<'_>) -> Result<usize> {
        self.written = ring.writer_cursor.position();
        let rewind = ring.writer_cursor.last_rewind();
        // A rewind position beyond `written` was stored after the load of `written`. The next
        // refresh handles it.
        if rewind > self.position && rewind <= self.written {
            if rewind - self.position > ring.bytes.len() as u64 {
                return Err(invalid_position_error());
            }
            (self.position, self.reported) = (rewind, rewind);
        }
        self.available(ring)
    }

    /// Reports that the ring is drained, if all bytes that this reader knows of are read and the
    /// last report is at least one report interval ago.
    pub(super) fn report_drained(&mut self, ring: &ByteRing<'_>) {
        if self.position - self.reported >= ring.rewind.report_interval()
            && self.position == self.written
        {
            self.reported = self.position;
            ring.reader_cursor.report_drained(self.position);
        }
    }

    fn available(&self, ring: &ByteRing<'_>) -> Result<usize> {
        let unread = self.written.checked_sub(self.position);
        let unread = unread.and_then(|unread| usize::try_from(unread).ok());
        unread.filter(|&unread| unread <= ring.bytes.len()).ok_or_else(invalid_position_error)
    }

    /// Releases the room of all read bytes. Returns true if the writer waits for room. The caller
    /// must then wake the writer.
    pub fn release(&mut self, region: &Region) -> bool {
        if self.released == self.position {
            return false;
        }
        self.released = self.position;
        let ring = region.ring_on(self.route);
        ring.reader_cursor.publish(self.position);
        ring.writer_cursor.take_room_request()
    }

    /// Releases the room of read bytes once they are a quarter of the ring. Returns as
    /// [`RingReader::release`] does. The bytes that stay unreleased cannot block a writer forever:
    /// if the ring is full, it also has unread bytes, and after reading them this reader releases
    /// the room.
    pub fn release_lazily(&mut self, region: &Region) -> bool {
        let unreleased = self.position - self.released;
        unreleased >= region.ring_bytes() as u64 / 4 && self.release(region)
    }
}

/// The maximum number of prefetched bytes. A core can have about this many bytes of cache lines in
/// flight.
const PREFETCH_BYTES: usize = 1 << 10;

/// Returns the addresses of the cache lines of the next `len` bytes. Stops at the end of the ring
/// and after [`PREFETCH_BYTES`].
fn prefetch_lines(bytes: Dst<'_>, position: u64, len: usize) -> impl Iterator<Item = *const u8> {
    let (start, until_end) = locate(bytes, position);
    let end = start + len.min(until_end).min(PREFETCH_BYTES);
    (start..end).step_by(CACHE_LINE_BYTES).map(move |at| bytes.as_src().as_ptr().wrapping_add(at))
}
