//! The writing end.

#[cfg(doc)]
use super::RecordHeader;
use super::{
    ByteRing, CACHE_LINE_BYTES, HEADER_BYTES, Region, RingRoute, STREAM_PIECES, copy_in,
    invalid_position_error, locate,
};
use crate::base::buffer::{Dst, Src, WORD};
use crate::base::copy::Stager;
use crate::base::error::Result;
use crate::base::ids::Rank;
use crate::base::processor;
use crate::base::spin;
use std::sync::atomic::{Ordering, fence};

/// The words of a head that are not zero.
const FIRST_WORD: usize = 0;
const LEN_WORD: usize = 2;

/// The longest body of which the next one's lines are asked for: those of longer ones do not come
/// while an answer does.
const MAX_PREFETCHED_BODY: usize = 8 << 10;

/// The writing end.
#[derive(Debug)]
pub struct RingWriter {
    route: RingRoute,
    /// Everything before this is written.
    position: u64,
    /// Everything before this is published.
    published: u64,
    /// So many bytes of the ring have their memory.
    reserved: usize,
    /// Everything before this had been read when it was last looked at.
    read_position: u64,
    /// What was put as a whole last was short, or lies behind one that was.
    is_after_short: bool,
    /// Where in the ring the last body ended that was put apart from short ones.
    long_body_end: usize,
    /// Something was put as a whole, and nothing after it.
    has_inline_copy: bool,
}

impl RingWriter {
    /// The beginning of the ring from one rank to another.
    pub fn new(from: Rank, to: Rank) -> Self {
        Self::with_route(RingRoute { from, to, is_bulk: false })
    }

    /// The beginning of the lane of one rank, for another.
    pub fn new_bulk(from: Rank, to: Rank) -> Self {
        Self::with_route(RingRoute { from, to, is_bulk: true })
    }

    fn with_route(route: RingRoute) -> Self {
        let (position, published, reserved, read, apart) = (0, 0, 0, 0, 0);
        let (is_after_short, has_newest) = (false, false);
        Self {
            route,
            position,
            published,
            reserved,
            read_position: read,
            is_after_short,
            long_body_end: apart,
            has_inline_copy: has_newest,
        }
    }

    /// Writes the parts, one after another, as far as there is room; how many bytes that was. The
    /// reader sees them after [`RingWriter::publish`].
    ///
    /// # Errors
    /// `Internal` where the reader's position makes no sense; `OutOfMemory` or `System` where a
    /// part of the ring is used for the first time and cannot be given memory.
    pub fn write(&mut self, region: &Region, parts: &[Src<'_>]) -> Result<usize> {
        self.write_staged(&mut Stager::for_total(total_len(parts)), region, parts)
    }

    fn write_staged(
        &mut self,
        stager: &mut Stager,
        region: &Region,
        parts: &[Src<'_>],
    ) -> Result<usize> {
        let (ring, wanted) = (self.route.ring(region), total_len(parts));
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

    /// Writes piece after piece and publishes each, while the reader takes those before; looks so
    /// often for room where there is too little for the next one. How many bytes that was. The
    /// caller then puts a `fence(SeqCst)` and rings for the reader.
    ///
    /// # Errors
    /// As [`RingWriter::write`].
    pub fn write_stream(&mut self, region: &Region, polls: u32, body: Src<'_>) -> Result<usize> {
        let ring = self.route.ring(region);
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

    /// Whether there is room for so much, and memory behind it.
    pub fn can_write(&mut self, region: &Region, len: usize) -> bool {
        let ring = self.route.ring(region);
        self.can_write_to(region, &ring, len)
    }

    /// The same. Whoever writes where it is false for another reason says why.
    fn can_write_to(&mut self, region: &Region, ring: &ByteRing<'_>, len: usize) -> bool {
        let has_room = self.poll_room(ring, len, 0).is_ok_and(|room| room >= len);
        has_room && self.reserve(region, ring, len).is_ok()
    }

    /// How much room there is, once there is enough or it has been looked for so often.
    fn poll_room(&mut self, ring: &ByteRing<'_>, wanted: usize, polls: u32) -> Result<usize> {
        if self.free_bytes(ring)? < wanted {
            let is_enough = |read: u64| {
                read.saturating_add(ring.bytes.len() as u64) >= self.position + wanted as u64
            };
            let _has_come = spin::spin_until(polls, || is_enough(ring.reader_cursor.position()));
            self.refresh(ring);
        }
        self.free_bytes(ring)
    }

    /// Writes a body behind the [head](Head) that has this first word, and publishes both, as
    /// [`RingWriter::publish`] does, if there is room for all of it; true if so.
    pub fn write_record(&mut self, region: &Region, first_word: u64, body: Src<'_>) -> bool {
        let wanted = HEADER_BYTES + body.len();
        let ring = self.route.ring(region);
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
        // What is in one cache line is stored at once: whoever looks at it takes it away between
        // two stores.
        ring.writer_cursor.inline_copy.publish(start, first_word, body);
        self.has_inline_copy = true;
        // With the stores before it, at once: a reader that looks would take the line away before
        // an exchange.
        ring.writer_cursor.position.store(self.position, Ordering::Release);
        if is_short {
            self.is_after_short = true;
        } else if !self.is_after_short {
            self.long_body_end = locate(ring.bytes, self.position).0;
        }
        true
    }

    /// After a body of this length: asks for the lines that another one would be put to. They were
    /// with the reader's core when they were used last, and come while whoever has put a body waits
    /// for an answer.
    pub fn prefetch_next(&self, region: &Region, len: usize) {
        // Most are short, and need not know where the ring is.
        if self.is_after_short {
            return;
        }
        let next = self.next_record_range(&self.route.ring(region), len);
        for at in (0..next.len()).step_by(CACHE_LINE_BYTES) {
            processor::prefetch_to_write(next.as_mut_ptr().wrapping_add(at));
        }
    }

    /// Where another body of this length goes with its head, up to the end of the ring. Nothing
    /// where bodies go back to its beginning, whose lines the reader is about to read, nor where
    /// there are more lines than come in time.
    pub(super) fn next_record_range<'a>(&self, ring: &ByteRing<'a>, len: usize) -> Dst<'a> {
        let turn = ring.rewind;
        let is_long_body = turn.long_body_offset.is_some()
            && len > turn.max_short_body
            && len <= MAX_PREFETCHED_BODY;
        let (start, straight) = locate(ring.bytes, self.position);
        let wanted = if is_long_body { HEADER_BYTES + len } else { 0 };
        ring.bytes.slice(start, wanted.min(straight))
    }

    /// Goes on where the last body ended that was not short, if there is such a place and
    /// everything is read.
    fn resume_long_bodies(&mut self, ring: &ByteRing<'_>) {
        let Some(least) = ring.rewind.long_body_offset else { return };
        if self.published != self.position
            || ring.reader_cursor.rewind_or_drained.load(Ordering::Acquire) != self.position
        {
            return;
        }
        let (start, _) = locate(ring.bytes, self.position);
        let to = self.long_body_end.max(least);
        if start < to {
            self.skip_ahead(ring, to - start);
        }
        self.is_after_short = false;
    }

    /// Goes on at the beginning of the ring, if that is worth it and everything is read.
    fn rewind(&mut self, ring: &ByteRing<'_>) {
        let (start, straight) = locate(ring.bytes, self.position);
        if (start as u64) < ring.rewind.rewind_after || self.published != self.position {
            return;
        }
        if ring.reader_cursor.rewind_or_drained.load(Ordering::Acquire) == self.position {
            self.skip_ahead(ring, straight);
        }
    }

    /// Goes on so many bytes ahead, where everything is read.
    fn skip_ahead(&mut self, ring: &ByteRing<'_>, skipped: usize) {
        self.position += skipped as u64;
        (self.published, self.read_position) = (self.position, self.position);
        ring.writer_cursor.rewind_or_drained.store(self.position, Ordering::Relaxed);
    }

    /// Makes sure that there is memory behind what is written next.
    fn reserve(&mut self, region: &Region, ring: &ByteRing<'_>, len: usize) -> Result<()> {
        if self.reserved < ring.bytes.len() {
            let (start, straight) = locate(ring.bytes, self.position);
            // What goes on at the beginning has been there before.
            let end = start + len.min(straight);
            self.reserved = region.reserve_ring(ring, self.reserved, end)?;
        }
        Ok(())
    }

    /// Everything before this is written.
    #[cfg(test)]
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// How many bytes the reader has not been shown.
    pub fn unpublished_bytes(&self) -> usize {
        usize::try_from(self.position - self.published).unwrap_or(usize::MAX)
    }

    /// Shows the reader what was written; false where that is nothing new. The caller then puts a
    /// `fence(SeqCst)` and rings for the reader.
    pub fn publish(&mut self, region: &Region) -> bool {
        if self.published == self.position {
            return false;
        }
        self.published = self.position;
        let ring = self.route.ring(region);
        ring.writer_cursor.position.store(self.position, Ordering::Release);
        true
    }

    /// Asks to be rung for once there is room; true where there is some already.
    ///
    /// # Errors
    /// As [`RingWriter::write`].
    pub fn request_room_wakeup(&mut self, region: &Region) -> Result<bool> {
        let ring = self.route.ring(region);
        ring.writer_cursor.waits_for_room.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.refresh(&ring);
        Ok(self.free_bytes(&ring)? > 0)
    }

    /// Whether the reader has read everything, and has said so.
    pub fn is_drained(&mut self, region: &Region) -> bool {
        let ring = self.route.ring(region);
        self.refresh(&ring);
        self.read_position == self.position
    }

    /// Looks how far the reader has come, which may not have told all that is known of it.
    fn refresh(&mut self, ring: &ByteRing<'_>) {
        self.read_position =
            self.read_position.max(ring.reader_cursor.position.load(Ordering::Acquire));
    }

    fn free_bytes(&self, ring: &ByteRing<'_>) -> Result<usize> {
        let used = self.position.checked_sub(self.read_position);
        let used = used.and_then(|used| usize::try_from(used).ok());
        let room = used.and_then(|used| ring.bytes.len().checked_sub(used));
        room.ok_or_else(invalid_position_error)
    }
}

/// The bytes of all parts.
fn total_len(parts: &[Src<'_>]) -> usize {
    parts.iter().map(|part| part.len()).sum()
}

/// In how many pieces a whole that is put is shown, and how long each is at least: a reader that is
/// close behind takes lines away that the writer is about to write (messages of 8 KiB took a fifth
/// longer in pieces of 2 KiB).
const MAX_PIECES: usize = 8;
const MIN_PIECE_BYTES: usize = 8 << 10;

fn split_pieces(whole: Src<'_>) -> impl Iterator<Item = Src<'_>> {
    let most = (whole.len() / MAX_PIECES).next_multiple_of(CACHE_LINE_BYTES).max(MIN_PIECE_BYTES);
    let starts = (0..whole.len()).step_by(most);
    starts.map(move |start| whole.slice(start, (whole.len() - start).min(most)))
}

/// Puts a head.
fn write_header(ring: &ByteRing<'_>, start: u64, first_word: u64, len: u64) {
    let (at, straight) = locate(ring.bytes, start);
    if straight >= HEADER_BYTES {
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

/// Puts a body; a reader that looks takes one piece while the next is put.
fn write_body(ring: &ByteRing<'_>, start: u64, body: Src<'_>) {
    let mut stager = Stager::for_total(body.len());
    split_pieces(body).fold(start, |place, piece| {
        copy_in(&mut stager, ring.bytes, place, piece);
        let end = place + piece.len() as u64;
        // The last one is shown by whoever has put the whole.
        if end - start < body.len() as u64 {
            ring.writer_cursor.position.store(end, Ordering::Release);
        }
        end
    });
}
