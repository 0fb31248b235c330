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
use std::sync::atomic::{Ordering, fence};

/// The reader of a byte ring.
#[derive(Debug)]
pub struct RingReader {
    route: RingRoute,
    /// The read position: all bytes before it are read.
    position: u64,
    /// The released position: the room before it is returned to the writer, and the reader has
    /// checked whether the writer waits for it.
    released: u64,
    /// The writer's position at the last refresh.
    written: u64,
    /// The last position that was reported as drained, for a writer that wants to rewind.
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

    /// Reads available bytes into `into`. Returns their number.
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

    /// Reads bytes until `into` is full, while the writer writes more. If the ring is empty, polls
    /// up to `polls` times. Returns the number of bytes read. The caller
    /// [releases](RingReader::release) them.
    ///
    /// # Errors
    /// As [`RingReader::read`].
    pub fn read_stream(&mut self, region: &Region, polls: u32, into: Dst<'_>) -> Result<usize> {
        let ring = region.ring_on(self.route);
        let piece = ring.bytes.len() / STREAM_PIECES;
        let mut taken = 0;
        while taken < into.len() && spin_until(polls, || self.has_more(&ring)) {
            taken += self.read(region, into.slice(taken, (into.len() - taken).min(piece)))?;
            // A writer that polls for room sees it at once. Whether a writer sleeps is checked
            // later.
            ring.reader_cursor.position.store(self.position, Ordering::Release);
        }
        Ok(taken)
    }

    /// Polls up to `polls` times until bytes have arrived, and then prefetches an inline copy of up
    /// to `len` bytes.
    #[inline]
    pub fn poll_for(&self, ring: &ByteRing<'_>, len: usize, polls: u32) {
        if spin_until(polls, || self.has_more(ring)) {
            ring.writer_cursor.inline_copy.prefetch_read(len);
        }
    }

    /// Returns whether bytes have arrived that are not read.
    #[inline]
    pub fn has_more(&self, ring: &ByteRing<'_>) -> bool {
        ring.writer_cursor.position() != self.position
    }

    /// Returns the snapshot of the inline copy, if the unread bytes are exactly the one record that
    /// it copies.
    ///
    /// # Errors
    /// As [`RingReader::read`].
    pub fn peek_inline(&mut self, ring: &ByteRing<'_>) -> Result<Option<InlineSnapshot>> {
        let held = self.refresh(ring)?;
        let newest = ring.writer_cursor.inline_copy.snapshot(self.position);
        Ok(newest.filter(|newest| held == HEADER_BYTES + newest.len))
    }

    /// Takes the record of a snapshot: copies its body, whose length is that of `into`.
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

    /// Skips bytes that were peeked.
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

    /// Takes the `seen` bytes that [`RingReader::peek`] has returned, and copies the following
    /// bytes to `into` as they arrive. Polls up to `polls` times for the next bytes. If they do not
    /// arrive in that time, returns false and leaves everything in the ring.
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

    /// Copies the next bytes to `into` without taking them. Returns the number of bytes that have
    /// arrived, or 0 if they do not fill `into`.
    ///
    /// # Errors
    /// As [`RingReader::read`].
    pub fn peek(&mut self, ring: &ByteRing<'_>, into: Dst<'_>) -> Result<usize> {
        let held = self.refresh(ring)?;
        if held < into.len() {
            return Ok(0);
        }
        // Prefetch all lines at once. Otherwise the lines after the header would be requested only
        // once the header has arrived.
        prefetch_lines(ring.bytes, self.position, held).for_each(processor::prefetch_to_read);
        copy_out(ring.bytes, self.position, into);
        Ok(held)
    }

    /// Loads the writer's position, and follows a rewind of the writer. Returns the number of
    /// unread bytes.
    #[inline]
    pub(super) fn refresh(&mut self, ring: &ByteRing<'_>) -> Result<usize> {
        self.written = ring.writer_cursor.position.load(Ordering::Acquire);
        let rewind = ring.writer_cursor.rewind_or_drained.load(Ordering::Relaxed);
        // A rewind beyond `written` was made after that load. The next refresh handles it.
        if rewind > self.position && rewind <= self.written {
            if rewind - self.position > ring.bytes.len() as u64 {
                return Err(invalid_position_error());
            }
            (self.position, self.reported) = (rewind, rewind);
        }
        self.available(ring)
    }

    /// Reports from time to time, to a writer that wants to rewind, that the ring is drained.
    fn report_drained(&mut self, ring: &ByteRing<'_>) {
        if self.position - self.reported >= ring.rewind.report_interval()
            && self.position == self.written
        {
            self.reported = self.position;
            ring.reader_cursor.rewind_or_drained.store(self.position, Ordering::Release);
        }
    }

    fn available(&self, ring: &ByteRing<'_>) -> Result<usize> {
        let held = self.written.checked_sub(self.position);
        let held = held.and_then(|held| usize::try_from(held).ok());
        held.filter(|&held| held <= ring.bytes.len()).ok_or_else(invalid_position_error)
    }

    /// Releases the room of read bytes. Returns true if the writer waits for room, so that the
    /// caller must wake it.
    pub fn release(&mut self, region: &Region) -> bool {
        if self.released == self.position {
            return false;
        }
        self.released = self.position;
        let ring = region.ring_on(self.route);
        ring.reader_cursor.position.store(self.position, Ordering::Release);
        fence(Ordering::SeqCst);
        ring.writer_cursor.waits_for_room.load(Ordering::Relaxed) != 0
            && ring.writer_cursor.waits_for_room.swap(0, Ordering::Relaxed) != 0
    }

    /// Releases the room of read bytes once they are a quarter of the ring. Fewer unreleased bytes
    /// never block a writer for good: if the ring is full, it has more bytes that this reader will
    /// take.
    pub fn release_lazily(&mut self, region: &Region) -> bool {
        let unreleased = self.position - self.released;
        unreleased >= region.ring_bytes() as u64 / 4 && self.release(region)
    }
}

/// The maximum number of prefetched bytes, about as many as a core can request at once.
const PREFETCH_BYTES: usize = 1 << 10;

/// Returns the addresses of the cache lines of `len` bytes, at most up to the end of the ring and
/// up to [`PREFETCH_BYTES`].
fn prefetch_lines(bytes: Dst<'_>, position: u64, len: usize) -> impl Iterator<Item = *const u8> {
    let (start, straight) = locate(bytes, position);
    let end = start + len.min(straight).min(PREFETCH_BYTES);
    (start..end).step_by(CACHE_LINE_BYTES).map(move |at| bytes.as_src().as_ptr().wrapping_add(at))
}
