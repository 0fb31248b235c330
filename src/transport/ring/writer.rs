//! The writing end.

#[cfg(doc)]
use super::Head;
use super::{HEAD_BYTES, LINE_BYTES, Region, Ring, STREAMED, Way, copy_in, nonsense, place};
use crate::base::buffer::{Dst, Src, WORD};
use crate::base::copy::Stager;
use crate::base::error::Result;
use crate::base::ids::Rank;
use crate::base::processor;
use crate::base::spin;
use std::sync::atomic::{Ordering, fence};

/// The words of a head that are not zero.
const FIRST: usize = 0;
const LEN: usize = 2;

/// The longest body of which the next one's lines are asked for: those of longer ones do not come
/// while an answer does.
const CLAIMED_BYTES: usize = 8 << 10;

/// The writing end.
#[derive(Debug)]
pub struct Writer {
    way: Way,
    /// Everything before this is written.
    position: u64,
    /// Everything before this is published.
    published: u64,
    /// So many bytes of the ring have their memory.
    reserved: usize,
    /// Everything before this had been read when it was last looked at.
    read: u64,
    /// What was put as a whole last was short, or lies behind one that was.
    is_after_short: bool,
    /// Where in the ring the last body ended that was put apart from short ones.
    apart: usize,
    /// Something was put as a whole, and nothing after it.
    has_newest: bool,
}

impl Writer {
    /// The beginning of the ring from one rank to another.
    pub fn new(from: Rank, to: Rank) -> Self {
        Self::of(Way { from, to, is_lane: false })
    }

    /// The beginning of the lane of one rank, for another.
    pub fn of_lane(from: Rank, to: Rank) -> Self {
        Self::of(Way { from, to, is_lane: true })
    }

    fn of(way: Way) -> Self {
        let (position, published, reserved, read, apart) = (0, 0, 0, 0, 0);
        let (is_after_short, has_newest) = (false, false);
        Self { way, position, published, reserved, read, is_after_short, apart, has_newest }
    }

    /// Writes the parts, one after another, as far as there is room; how many bytes that was. The
    /// reader sees them after [`Writer::publish`].
    ///
    /// # Errors
    /// `Internal` where the reader's position makes no sense; `OutOfMemory` or `System` where a
    /// part of the ring is used for the first time and cannot be given memory.
    pub fn write(&mut self, region: &Region, parts: &[Src<'_>]) -> Result<usize> {
        self.write_by(&mut Stager::of(total(parts)), region, parts)
    }

    fn write_by(
        &mut self,
        stager: &mut Stager,
        region: &Region,
        parts: &[Src<'_>],
    ) -> Result<usize> {
        let (ring, wanted) = (self.way.ring(region), total(parts));
        let room = self.room_for(&ring, wanted, 0)?;
        self.reserve(region, &ring, wanted.min(room))?;
        if std::mem::take(&mut self.has_newest) {
            ring.written.newest.forget();
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
    /// As [`Writer::write`].
    pub fn stream(&mut self, region: &Region, looks: u32, body: Src<'_>) -> Result<usize> {
        let ring = self.way.ring(region);
        let most = ring.bytes.len() / STREAMED;
        let piece = (body.len() / PIECES).max(PIECE_BYTES).min(most);
        let (mut written, mut stager) = (0, Stager::of(body.len()));
        while written < body.len() {
            let wanted = (body.len() - written).min(piece);
            let room = self.room_for(&ring, wanted, looks)?;
            if room == 0 {
                break;
            }
            let piece = [body.slice(written, wanted.min(room))];
            written += self.write_by(&mut stager, region, &piece)?;
            self.publish(region);
        }
        Ok(written)
    }

    /// Whether there is room for so much, and memory behind it.
    pub fn makes_room(&mut self, region: &Region, len: usize) -> bool {
        let ring = self.way.ring(region);
        self.has_room_for(region, &ring, len)
    }

    /// The same. Whoever writes where it is false for another reason says why.
    fn has_room_for(&mut self, region: &Region, ring: &Ring<'_>, len: usize) -> bool {
        let has_room = self.room_for(ring, len, 0).is_ok_and(|room| room >= len);
        has_room && self.reserve(region, ring, len).is_ok()
    }

    /// How much room there is, once there is enough or it has been looked for so often.
    fn room_for(&mut self, ring: &Ring<'_>, wanted: usize, looks: u32) -> Result<usize> {
        if self.room(ring)? < wanted {
            let is_enough = |read: u64| {
                read.saturating_add(ring.bytes.len() as u64) >= self.position + wanted as u64
            };
            let _has_come = spin::look_whether(looks, || is_enough(ring.read.position()));
            self.look(ring);
        }
        self.room(ring)
    }

    /// Writes a body behind the [head](Head) that has this first word, and publishes both, as
    /// [`Writer::publish`] does, if there is room for all of it; true if so.
    pub fn put_whole(&mut self, region: &Region, first: u64, body: Src<'_>) -> bool {
        let wanted = HEAD_BYTES + body.len();
        let ring = self.way.ring(region);
        ring.written.newest.claim(body.len());
        let is_short = body.len() <= ring.turn.longest;
        if is_short {
            self.rewind(&ring);
        } else if self.is_after_short {
            self.leave(&ring);
        }
        if !self.has_room_for(region, &ring, wanted) {
            return false;
        }
        let start = self.position;
        self.position += wanted as u64;
        self.published = self.position;
        put_head(&ring, start, first, body.len() as u64);
        put_body(&ring, start + HEAD_BYTES as u64, body);
        // What is in one cache line is stored at once: whoever looks at it takes it away between
        // two stores.
        ring.written.newest.keep(start, first, body);
        self.has_newest = true;
        // With the stores before it, at once: a reader that looks would take the line away before
        // an exchange.
        ring.written.position.store(self.position, Ordering::Release);
        if is_short {
            self.is_after_short = true;
        } else if !self.is_after_short {
            self.apart = place(ring.bytes, self.position).0;
        }
        true
    }

    /// After a body of this length: asks for the lines that another one would be put to. They were
    /// with the reader's core when they were used last, and come while whoever has put a body waits
    /// for an answer.
    pub fn claim_next(&self, region: &Region, len: usize) {
        // Most are short, and need not know where the ring is.
        if self.is_after_short {
            return;
        }
        let next = self.next_place(&self.way.ring(region), len);
        for at in (0..next.len()).step_by(LINE_BYTES) {
            processor::prefetch_to_write(next.as_mut_ptr().wrapping_add(at));
        }
    }

    /// Where another body of this length goes with its head, up to the end of the ring. Nothing
    /// where bodies go back to its beginning, whose lines the reader is about to read, nor where
    /// there are more lines than come in time.
    pub(super) fn next_place<'a>(&self, ring: &Ring<'a>, len: usize) -> Dst<'a> {
        let turn = ring.turn;
        let goes_ahead = turn.apart.is_some() && len > turn.longest && len <= CLAIMED_BYTES;
        let (start, straight) = place(ring.bytes, self.position);
        let wanted = if goes_ahead { HEAD_BYTES + len } else { 0 };
        ring.bytes.slice(start, wanted.min(straight))
    }

    /// Goes on where the last body ended that was not short, if there is such a place and
    /// everything is read.
    fn leave(&mut self, ring: &Ring<'_>) {
        let Some(least) = ring.turn.apart else { return };
        if self.published != self.position
            || ring.read.turn.load(Ordering::Acquire) != self.position
        {
            return;
        }
        let (start, _) = place(ring.bytes, self.position);
        let to = self.apart.max(least);
        if start < to {
            self.go_on(ring, to - start);
        }
        self.is_after_short = false;
    }

    /// Goes on at the beginning of the ring, if that is worth it and everything is read.
    fn rewind(&mut self, ring: &Ring<'_>) {
        let (start, straight) = place(ring.bytes, self.position);
        if (start as u64) < ring.turn.bytes || self.published != self.position {
            return;
        }
        if ring.read.turn.load(Ordering::Acquire) == self.position {
            self.go_on(ring, straight);
        }
    }

    /// Goes on so many bytes ahead, where everything is read.
    fn go_on(&mut self, ring: &Ring<'_>, ahead: usize) {
        self.position += ahead as u64;
        (self.published, self.read) = (self.position, self.position);
        ring.written.turn.store(self.position, Ordering::Relaxed);
    }

    /// Makes sure that there is memory behind what is written next.
    fn reserve(&mut self, region: &Region, ring: &Ring<'_>, len: usize) -> Result<()> {
        if self.reserved < ring.bytes.len() {
            let (start, straight) = place(ring.bytes, self.position);
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
    pub fn unpublished(&self) -> usize {
        usize::try_from(self.position - self.published).unwrap_or(usize::MAX)
    }

    /// Shows the reader what was written; false where that is nothing new. The caller then puts a
    /// `fence(SeqCst)` and rings for the reader.
    pub fn publish(&mut self, region: &Region) -> bool {
        if self.published == self.position {
            return false;
        }
        self.published = self.position;
        let ring = self.way.ring(region);
        ring.written.position.store(self.position, Ordering::Release);
        true
    }

    /// Asks to be rung for once there is room; true where there is some already.
    ///
    /// # Errors
    /// As [`Writer::write`].
    pub fn wait_for_room(&mut self, region: &Region) -> Result<bool> {
        let ring = self.way.ring(region);
        ring.written.waits.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.look(&ring);
        Ok(self.room(&ring)? > 0)
    }

    /// Whether the reader has read everything, and has said so.
    pub fn all_is_read(&mut self, region: &Region) -> bool {
        let ring = self.way.ring(region);
        self.look(&ring);
        self.read == self.position
    }

    /// Looks how far the reader has come, which may not have told all that is known of it.
    fn look(&mut self, ring: &Ring<'_>) {
        self.read = self.read.max(ring.read.position.load(Ordering::Acquire));
    }

    fn room(&self, ring: &Ring<'_>) -> Result<usize> {
        let used = self.position.checked_sub(self.read);
        let used = used.and_then(|used| usize::try_from(used).ok());
        let room = used.and_then(|used| ring.bytes.len().checked_sub(used));
        room.ok_or_else(nonsense)
    }
}

/// The bytes of all parts.
fn total(parts: &[Src<'_>]) -> usize {
    parts.iter().map(|part| part.len()).sum()
}

/// In how many pieces a whole that is put is shown, and how long each is at least: a reader that is
/// close behind takes lines away that the writer is about to write (messages of 8 KiB took a fifth
/// longer in pieces of 2 KiB).
const PIECES: usize = 8;
const PIECE_BYTES: usize = 8 << 10;

fn pieces(whole: Src<'_>) -> impl Iterator<Item = Src<'_>> {
    let most = (whole.len() / PIECES).next_multiple_of(LINE_BYTES).max(PIECE_BYTES);
    let starts = (0..whole.len()).step_by(most);
    starts.map(move |start| whole.slice(start, (whole.len() - start).min(most)))
}

/// Puts a head.
fn put_head(ring: &Ring<'_>, start: u64, first: u64, len: u64) {
    let (at, straight) = place(ring.bytes, start);
    if straight >= HEAD_BYTES {
        let room = ring.bytes.slice(at, HEAD_BYTES);
        room.set_word(FIRST * WORD, first);
        room.set_word((FIRST + 1) * WORD, 0);
        room.set_word(LEN * WORD, len);
        return room.set_word((LEN + 1) * WORD, 0);
    }
    let words = [first, 0, len, 0].map(u64::to_le_bytes);
    copy_in(&mut Stager::of(HEAD_BYTES), ring.bytes, start, Src::from(words.as_flattened()));
}

/// Puts a body; a reader that looks takes one piece while the next is put.
fn put_body(ring: &Ring<'_>, start: u64, body: Src<'_>) {
    let mut stager = Stager::of(body.len());
    pieces(body).fold(start, |place, piece| {
        copy_in(&mut stager, ring.bytes, place, piece);
        let end = place + piece.len() as u64;
        // The last one is shown by whoever has put the whole.
        if end - start < body.len() as u64 {
            ring.written.position.store(end, Ordering::Release);
        }
        end
    });
}
