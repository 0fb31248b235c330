//! The reading end.

use super::{
    ByteRing, CACHE_LINE_BYTES, HEADER_BYTES, InlineSnapshot, Region, RingRoute, STREAM_PIECES,
    copy_out, invalid_position_error, locate,
};
use crate::base::buffer::Dst;
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use crate::base::processor;
use crate::base::spin;
use std::sync::atomic::{Ordering, fence};

/// The reading end.
#[derive(Debug)]
pub struct RingReader {
    route: RingRoute,
    /// Everything before this is read.
    position: u64,
    /// Everything before this is given back to the writer, and whether it waits for that has been
    /// asked.
    released: u64,
    /// Everything before this had been written when it was last looked at.
    written: u64,
    /// That everything before this is read has been said, for a writer that would rewind.
    pub(super) reported: u64,
}

impl RingReader {
    /// The beginning of the ring from one rank to another.
    pub fn new(from: Rank, to: Rank) -> Self {
        Self::with_route(RingRoute { from, to, is_bulk: false })
    }

    /// The beginning of the lane of one rank, for another.
    pub fn new_bulk(from: Rank, to: Rank) -> Self {
        Self::with_route(RingRoute { from, to, is_bulk: true })
    }

    fn with_route(route: RingRoute) -> Self {
        Self { route, position: 0, released: 0, written: 0, reported: 0 }
    }

    /// Takes what has come, as far as there is room; how many bytes that was.
    ///
    /// # Errors
    /// `Internal` where the writer's position makes no sense.
    pub fn read(&mut self, region: &Region, into: Dst<'_>) -> Result<usize> {
        let ring = self.route.ring(region);
        if self.written == self.position {
            self.refresh(&ring)?;
        }
        let len = self.available(&ring)?.min(into.len());
        copy_out(ring.bytes, self.position, into.slice(0, len));
        self.position += len as u64;
        Ok(len)
    }

    /// Takes what comes until `into` is full, while the writer writes more; looks so often for it
    /// where nothing is there. How many bytes that was. The caller [releases](Reader::release)
    /// them.
    ///
    /// # Errors
    /// As [`RingReader::reader_cursor`].
    pub fn read_stream(&mut self, region: &Region, polls: u32, into: Dst<'_>) -> Result<usize> {
        let ring = self.route.ring(region);
        let piece = ring.bytes.len() / STREAM_PIECES;
        let mut taken = 0;
        while taken < into.len() && spin::spin_until(polls, || self.has_more(&ring)) {
            taken += self.read(region, into.slice(taken, (into.len() - taken).min(piece)))?;
            // A writer that looks for room has some; whether one sleeps is asked later.
            ring.reader_cursor.position.store(self.position, Ordering::Release);
        }
        Ok(taken)
    }

    /// Looks so often until something has come, and asks for what lies beside the position then,
    /// which may be as long.
    #[inline]
    pub fn poll_for(&self, ring: &ByteRing<'_>, len: usize, polls: u32) {
        if spin::spin_until(polls, || self.has_more(ring)) {
            ring.writer_cursor.inline_copy.prefetch_read(len);
        }
    }

    /// Whether anything has come since what was taken last.
    #[inline]
    pub fn has_more(&self, ring: &ByteRing<'_>) -> bool {
        ring.writer_cursor.position() != self.position
    }

    /// What has come since what was taken last, where all of that was put as one whole and its
    /// beginning lies beside the writer's position.
    ///
    /// # Errors
    /// As [`RingReader::reader_cursor`].
    pub fn peek_inline(&mut self, ring: &ByteRing<'_>) -> Result<Option<InlineSnapshot>> {
        let held = self.refresh(ring)?;
        let newest = ring.writer_cursor.inline_copy.snapshot(self.position);
        Ok(newest.filter(|newest| held == HEADER_BYTES + newest.len))
    }

    /// Takes it: its body, which is as long as `into`.
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
            return match self.take_peeked(ring, (HEADER_BYTES, 0), into)? {
                true => Ok(()),
                false => Err(Error::internal("less has come than was seen")),
            };
        }
        self.position += (HEADER_BYTES + seen.len) as u64;
        self.report_drained(ring);
        Ok(())
    }

    /// Takes so many bytes that were seen.
    ///
    /// # Errors
    /// `Internal` where so many have not come.
    pub fn skip(&mut self, ring: &ByteRing<'_>, len: usize) -> Result<()> {
        if self.available(ring)? < len {
            return Err(Error::internal("less has come than was seen"));
        }
        self.position += len as u64;
        Ok(())
    }

    /// The ring itself.
    pub fn ring<'a>(&self, region: &'a Region) -> ByteRing<'a> {
        self.route.ring(region)
    }

    /// Everything before this is taken.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Takes what [`RingReader::peek`] has shown, and as much more as fills `into`, a piece
    /// whenever one comes. Looks so often for one; false where it has not come by then: all of it
    /// is still there.
    ///
    /// # Errors
    /// As [`RingReader::reader_cursor`].
    pub fn take_peeked(
        &mut self,
        ring: &ByteRing<'_>,
        (seen, looks): (usize, u32),
        into: Dst<'_>,
    ) -> Result<bool> {
        let mut taken = 0;
        while taken < into.len() {
            let here = self.available(ring)?.saturating_sub(seen).min(into.len());
            if here < taken {
                return Err(invalid_position_error());
            }
            copy_out(
                ring.bytes,
                self.position + (seen + taken) as u64,
                into.slice(taken, here - taken),
            );
            taken = here;
            if taken < into.len() {
                let written = self.written;
                if !spin::spin_until(looks, || ring.writer_cursor.position() != written) {
                    return Ok(false);
                }
                self.refresh(ring)?;
            }
        }
        self.position += (seen + taken) as u64;
        self.report_drained(ring);
        Ok(true)
    }

    /// Copies what comes next, if that fills `into`, and leaves it there. How many bytes have come;
    /// 0 where they do not fill it.
    ///
    /// # Errors
    /// As [`RingReader::reader_cursor`].
    pub fn peek(&mut self, ring: &ByteRing<'_>, into: Dst<'_>) -> Result<usize> {
        let held = self.refresh(ring)?;
        if held < into.len() {
            return Ok(0);
        }
        // All lines are on their way at once, not those behind the head once that is here.
        prefetch_lines(ring.bytes, self.position, held).for_each(processor::prefetch_to_read);
        copy_out(ring.bytes, self.position, into);
        Ok(held)
    }

    /// Looks how far the writer has come, and goes where it goes on; how many bytes have come.
    #[inline]
    pub(super) fn refresh(&mut self, ring: &ByteRing<'_>) -> Result<usize> {
        self.written = ring.writer_cursor.position.load(Ordering::Acquire);
        let turn = ring.writer_cursor.rewind_or_drained.load(Ordering::Relaxed);
        // One behind what is written has been made since, and what lies there is seen by another
        // look.
        if turn > self.position && turn <= self.written {
            if turn - self.position > ring.bytes.len() as u64 {
                return Err(invalid_position_error());
            }
            (self.position, self.reported) = (turn, turn);
        }
        self.available(ring)
    }

    /// Tells a writer that would rewind, every now and then, that there is nothing more to read.
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

    /// Gives the room of what was read back; true where the writer waits for it and has to be rung
    /// for.
    pub fn release(&mut self, region: &Region) -> bool {
        if self.released == self.position {
            return false;
        }
        self.released = self.position;
        let ring = self.route.ring(region);
        ring.reader_cursor.position.store(self.position, Ordering::Release);
        fence(Ordering::SeqCst);
        ring.writer_cursor.waits_for_room.load(Ordering::Relaxed) != 0
            && ring.writer_cursor.waits_for_room.swap(0, Ordering::Relaxed) != 0
    }

    /// The same once that is a part of the ring that is worth the trouble: less than that never
    /// keeps a writer waiting, since a ring that is full otherwise has more that this reader will
    /// take.
    pub fn release_lazily(&mut self, region: &Region) -> bool {
        let unreleased = self.position - self.released;
        unreleased >= region.ring_bytes() as u64 / 4 && self.release(region)
    }
}

/// What is fetched ahead at most, about as much as a core has under way at once; and in what steps.
const PREFETCH_BYTES: usize = 1 << 10;

/// The cache lines of so many bytes, or of the first of them, as far as they lie before the end.
fn prefetch_lines(bytes: Dst<'_>, position: u64, len: usize) -> impl Iterator<Item = *const u8> {
    let (start, straight) = locate(bytes, position);
    let end = start + len.min(straight).min(PREFETCH_BYTES);
    (start..end).step_by(CACHE_LINE_BYTES).map(move |at| bytes.as_src().as_ptr().wrapping_add(at))
}
