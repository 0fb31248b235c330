//! The writer of a byte ring.

use super::inline_copy::CACHE_LINE_BYTES;
#[cfg(doc)]
use super::memory::RecordHeader;
use super::memory::{
    ByteRing, HEADER_BYTES, RingRoute, STREAM_PIECES, copy_in, invalid_position_error, locate,
};
use crate::base::buffer::{Dst, Src, WORD};
use crate::base::copy::Stager;
use crate::base::error::Result;
use crate::base::ids::Rank;
use crate::base::processor;
use crate::transport::region::Region;
use crate::wait::policy::spin_until;

/// The index of the header word whose meaning the caller defines.
const FIRST_WORD: usize = 0;
/// The index of the header word with the length of the body.
const LEN_WORD: usize = 2;

/// The length of the longest body for which the lines of the next record are prefetched. The lines
/// of a longer body would not all arrive while the sender waits for an answer.
const MAX_PREFETCHED_BODY: usize = 8 << 10;

/// The writer of a byte ring.
#[derive(Debug)]
pub struct RingWriter {
    route: RingRoute,
    /// The write position. All bytes before it are written.
    position: u64,
    /// The published position. All bytes before it are visible to the reader.
    published: u64,
    /// The number of bytes of the ring that have memory.
    reserved: usize,
    /// The reader's position when this writer last loaded it, or the position after a later
    /// rewind.
    read_position: u64,
    /// Whether a short record was written since this writer last continued in the long-body area.
    is_after_short: bool,
    /// The offset in the ring at which the last record in the long-body area ended.
    long_body_end: usize,
    /// Whether the inline copy is valid: the last write was the record that the copy has.
    has_inline_copy: bool,
}

impl RingWriter {
    /// Creates the writer of the ring from one rank to another, at its beginning.
    pub fn new(from: Rank, to: Rank) -> Self {
        Self::with_route(RingRoute { from, to, is_bulk: false })
    }

    /// Creates the writer of a rank's bulk ring for another rank, at its beginning.
    pub fn new_bulk(from: Rank, to: Rank) -> Self {
        Self::with_route(RingRoute { from, to, is_bulk: true })
    }

    fn with_route(route: RingRoute) -> Self {
        Self {
            route,
            position: 0,
            published: 0,
            reserved: 0,
            read_position: 0,
            is_after_short: false,
            long_body_end: 0,
            has_inline_copy: false,
        }
    }

    /// Writes the parts, one after another, until all are written or the ring is full. Returns the
    /// number of bytes written. The reader sees these bytes only after [`RingWriter::publish`].
    ///
    /// # Errors
    /// `Internal` if the reader's position is invalid; `OutOfMemory` or `System` if a part of the
    /// ring is used for the first time and no memory is available for it.
    pub fn write(&mut self, region: &Region, parts: &[Src<'_>]) -> Result<usize> {
        self.write_staged(&mut Stager::for_total(total_len(parts)), region, parts)
    }

    fn write_staged(
        &mut self,
        stager: &mut Stager,
        region: &Region,
        parts: &[Src<'_>],
    ) -> Result<usize> {
        let (ring, wanted) = (region.ring_on(self.route), total_len(parts));
        let room = self.poll_room(&ring, wanted, 0)?;
        self.reserve(region, &ring, wanted.min(room))?;
        if std::mem::take(&mut self.has_inline_copy) {
            ring.writer_cursor.inline_copy.invalidate();
        }
        let mut written = 0;
        for part in parts {
            let len = part.len().min(room - written);
            copy_in(stager, ring.bytes, self.position, part.slice(0, len));
            self.position += len as u64;
            written += len;
        }
        Ok(written)
    }

    /// Writes a body in pieces and publishes each piece, so that the reader takes earlier pieces
    /// while this writer writes later ones. If there is no room for the next piece, polls up to
    /// `polls` times, and returns if there is still no room. Returns the number of bytes written.
    /// The caller must then execute `fence(SeqCst)` and wake the reader.
    ///
    /// # Errors
    /// As [`RingWriter::write`].
    pub fn write_stream(&mut self, region: &Region, polls: u32, body: Src<'_>) -> Result<usize> {
        let ring = region.ring_on(self.route);
        let most = ring.bytes.len() / STREAM_PIECES;
        let piece = (body.len() / MAX_PIECES).max(MIN_PIECE_BYTES).min(most);
        let (mut written, mut stager) = (0, Stager::for_total(body.len()));
        while written < body.len() {
            let wanted = (body.len() - written).min(piece);
            let room = self.poll_room(&ring, wanted, polls)?;
            if room == 0 {
                break;
            }
            let piece = [body.slice(written, wanted.min(room))];
            written += self.write_staged(&mut stager, region, &piece)?;
            self.publish(region);
        }
        Ok(written)
    }

    /// Returns the write position.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Returns whether the ring has room for `len` bytes and this room has memory.
    pub fn can_write(&mut self, region: &Region, len: usize) -> bool {
        let ring = region.ring_on(self.route);
        self.can_write_to(region, &ring, len)
    }

    /// As [`RingWriter::can_write`]. If the result is false because of an error, the next write
    /// reports that error.
    fn can_write_to(&mut self, region: &Region, ring: &ByteRing<'_>, len: usize) -> bool {
        let has_room = self.poll_room(ring, len, 0).is_ok_and(|room| room >= len);
        has_room && self.reserve(region, ring, len).is_ok()
    }

    /// Polls up to `polls` times until the ring has `wanted` free bytes. Returns the number of free
    /// bytes.
    fn poll_room(&mut self, ring: &ByteRing<'_>, wanted: usize, polls: u32) -> Result<usize> {
        if self.free_bytes(ring)? < wanted {
            let is_enough = |read: u64| {
                read.saturating_add(ring.bytes.len() as u64) >= self.position + wanted as u64
            };
            let _has_come = spin_until(polls, || is_enough(ring.reader_cursor.position()));
            self.refresh(ring);
        }
        self.free_bytes(ring)
    }

    /// Writes a record, that is, a [header](RecordHeader) with this first word, and the body. Also
    /// publishes the record, as [`RingWriter::publish`] does. If there is no room for the whole
    /// record, returns false and writes nothing.
    pub fn write_record(&mut self, region: &Region, first_word: u64, body: Src<'_>) -> bool {
        let wanted = HEADER_BYTES + body.len();
        let ring = region.ring_on(self.route);
        ring.writer_cursor.inline_copy.prefetch_write(body.len());
        let is_short = body.len() <= ring.rewind.max_short_body;
        if is_short {
            self.rewind(&ring);
        } else if self.is_after_short {
            self.resume_long_bodies(&ring);
        }
        if !self.can_write_to(region, &ring, wanted) {
            return false;
        }
        let start = self.position;
        self.position += wanted as u64;
        self.published = self.position;
        write_header(&ring, start, first_word, body.len() as u64);
        write_body(&ring, start + HEADER_BYTES as u64, body);
        // From here on, all stores to the cache line of the cursor follow each other directly. A
        // reader that polls this line could take it away between two stores that are further
        // apart.
        ring.writer_cursor.inline_copy.publish(start, first_word, body);
        self.has_inline_copy = true;
        ring.writer_cursor.publish(self.position);
        if is_short {
            self.is_after_short = true;
        } else if !self.is_after_short {
            self.long_body_end = locate(ring.bytes, self.position).0;
        }
        true
    }

    /// Prefetches the lines of the next record, which is expected to have a body of this length as
    /// the last one had. The lines are in the cache of the reader's core since their last use. They
    /// arrive while the sender waits for an answer.
    pub fn prefetch_next(&self, region: &Region, len: usize) {
        // Most bodies are short. This check comes first, because it does not need the address of
        // the ring.
        if self.is_after_short {
            return;
        }
        let next = self.next_record_range(&region.ring_on(self.route), len);
        for at in (0..next.len()).step_by(CACHE_LINE_BYTES) {
            processor::prefetch_to_write(next.as_mut_ptr().wrapping_add(at));
        }
    }

    /// Returns the range in the ring that the next record will have if its body has this length.
    /// The range ends at the end of the ring at the latest. The range is empty if such a record
    /// goes to the beginning of the ring, whose lines the reader is about to read. It is also empty
    /// if the body has more lines than arrive in time.
    pub(super) fn next_record_range<'a>(&self, ring: &ByteRing<'a>, len: usize) -> Dst<'a> {
        let policy = ring.rewind;
        let is_long_body = policy.long_body_offset.is_some()
            && len > policy.max_short_body
            && len <= MAX_PREFETCHED_BODY;
        let (start, until_end) = locate(ring.bytes, self.position);
        let wanted = if is_long_body { HEADER_BYTES + len } else { 0 };
        ring.bytes.slice(start, wanted.min(until_end))
    }

    /// Skips to the end of the last record in the long-body area, if the ring has such an area and
    /// the reader has reported that all bytes are read.
    fn resume_long_bodies(&mut self, ring: &ByteRing<'_>) {
        let Some(least) = ring.rewind.long_body_offset else { return };
        if self.published != self.position || !ring.reader_cursor.is_drained(self.position) {
            return;
        }
        let (start, _) = locate(ring.bytes, self.position);
        let to = self.long_body_end.max(least);
        if start < to {
            self.skip_ahead(ring, to - start);
        }
        self.is_after_short = false;
    }

    /// Skips to the beginning of the ring, if the rewind policy asks for this and the reader has
    /// reported that all bytes are read.
    fn rewind(&mut self, ring: &ByteRing<'_>) {
        let (start, until_end) = locate(ring.bytes, self.position);
        if (start as u64) < ring.rewind.rewind_after || self.published != self.position {
            return;
        }
        if ring.reader_cursor.is_drained(self.position) {
            self.skip_ahead(ring, until_end);
        }
    }

    /// Skips this number of bytes. The reader must have read all bytes before them.
    fn skip_ahead(&mut self, ring: &ByteRing<'_>, skipped: usize) {
        self.position += skipped as u64;
        (self.published, self.read_position) = (self.position, self.position);
        ring.writer_cursor.rewind_to(self.position);
    }

    /// Ensures that the next `len` bytes of the ring have memory.
    fn reserve(&mut self, region: &Region, ring: &ByteRing<'_>, len: usize) -> Result<()> {
        if self.reserved < ring.bytes.len() {
            let (start, until_end) = locate(ring.bytes, self.position);
            // If the bytes wrap around, the beginning of the ring already has memory from the first
            // pass.
            let end = start + len.min(until_end);
            self.reserved = region.reserve_ring(ring, self.reserved, end)?;
        }
        Ok(())
    }

    /// Returns the number of bytes that are written but not yet published.
    pub fn unpublished_bytes(&self) -> usize {
        usize::try_from(self.position - self.published).unwrap_or(usize::MAX)
    }

    /// Publishes the written bytes to the reader. Returns false if there are no new bytes. If the
    /// result is true, the caller must execute `fence(SeqCst)` and wake the reader.
    pub fn publish(&mut self, region: &Region) -> bool {
        if self.published == self.position {
            return false;
        }
        self.published = self.position;
        let ring = region.ring_on(self.route);
        ring.writer_cursor.publish(self.position);
        true
    }

    /// Requests that the reader wakes this writer once there is room. Returns true if there is room
    /// already.
    ///
    /// # Errors
    /// As [`RingWriter::write`].
    pub fn request_room_wakeup(&mut self, region: &Region) -> Result<bool> {
        let ring = region.ring_on(self.route);
        ring.writer_cursor.request_room();
        self.refresh(&ring);
        Ok(self.free_bytes(&ring)? > 0)
    }

    /// Returns whether the reader has read all bytes and has released their room.
    pub fn is_drained(&mut self, region: &Region) -> bool {
        let ring = region.ring_on(self.route);
        self.refresh(&ring);
        self.read_position == self.position
    }

    /// Loads the reader's position. If the known position is greater than the loaded position, the
    /// known position stays: a rewind has moved it ahead, and the reader has not followed the
    /// rewind yet.
    fn refresh(&mut self, ring: &ByteRing<'_>) {
        self.read_position = self.read_position.max(ring.reader_cursor.position());
    }

    fn free_bytes(&self, ring: &ByteRing<'_>) -> Result<usize> {
        let used = self.position.checked_sub(self.read_position);
        let used = used.and_then(|used| usize::try_from(used).ok());
        let room = used.and_then(|used| ring.bytes.len().checked_sub(used));
        room.ok_or_else(invalid_position_error)
    }
}

/// Returns the number of bytes of all parts.
fn total_len(parts: &[Src<'_>]) -> usize {
    parts.iter().map(|part| part.len()).sum()
}

/// The maximum number of pieces in which a body is published.
const MAX_PIECES: usize = 8;
/// The minimum size of a piece. With smaller pieces, a reader that is close behind the writer
/// takes away cache lines that the writer is about to write. (Messages of 8 KiB took 20 % longer
/// in pieces of 2 KiB.)
const MIN_PIECE_BYTES: usize = 8 << 10;

fn split_pieces(whole: Src<'_>) -> impl Iterator<Item = Src<'_>> {
    let most = (whole.len() / MAX_PIECES).next_multiple_of(CACHE_LINE_BYTES).max(MIN_PIECE_BYTES);
    let starts = (0..whole.len()).step_by(most);
    starts.map(move |start| whole.slice(start, (whole.len() - start).min(most)))
}

/// Writes the header of a record.
fn write_header(ring: &ByteRing<'_>, start: u64, first_word: u64, len: u64) {
    let (at, until_end) = locate(ring.bytes, start);
    if until_end >= HEADER_BYTES {
        let room = ring.bytes.slice(at, HEADER_BYTES);
        room.set_word(FIRST_WORD * WORD, first_word);
        room.set_word((FIRST_WORD + 1) * WORD, 0);
        room.set_word(LEN_WORD * WORD, len);
        return room.set_word((LEN_WORD + 1) * WORD, 0);
    }
    let words = [first_word, 0, len, 0].map(u64::to_le_bytes);
    copy_in(
        &mut Stager::for_total(HEADER_BYTES),
        ring.bytes,
        start,
        Src::from(words.as_flattened()),
    );
}

/// Writes the body of a record. The function publishes each piece except the last, so that a
/// polling reader takes one piece while the writer writes the next piece.
fn write_body(ring: &ByteRing<'_>, start: u64, body: Src<'_>) {
    let mut stager = Stager::for_total(body.len());
    split_pieces(body).fold(start, |place, piece| {
        copy_in(&mut stager, ring.bytes, place, piece);
        let end = place + piece.len() as u64;
        // The caller publishes the last piece, together with the whole record.
        if end - start < body.len() as u64 {
            ring.writer_cursor.publish(end);
        }
        end
    });
}
