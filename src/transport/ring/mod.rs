//! A ring of bytes from one rank of a domain to another: a stream in shared memory.
//!
//! One writer, one reader. Each keeps the position that it owns in memory of its own and only publishes it, so
//! that nothing which the other side writes is ever an index: the other's position is a number that is compared
//! with the own one, and nonsense (more bytes than the ring has) is an error.
//!
//! Positions count bytes from the beginning and never wrap; the place of a byte is its position modulo the size,
//! a power of two. A writer that finds no room says so in its cursor, and the reader rings for it once there is
//! some (Dekker's pattern, as in [`wait::bell`](crate::wait::bell)). Readers are always told of new bytes.
//!
//! A writer that knows that all is read leaves the rest of a lap out and *rewinds* to the beginning of the ring, so that
//! messages back and forth stay in a part of it that both cores have near. Its cursor says from which
//! position on the stream goes on, and a reader that has read all before goes on there.
//!
//! What was put as a whole lies beside the writer's position too, as long as nothing has been put after it, or the beginning of
//! it: a reader that keeps up has that with the line that tells it of it, and need not wait for another one.

mod newest;
#[cfg(test)]
mod tests;

pub use newest::{Beside, NEWEST_BYTES};

use super::region::Region;
use crate::base::buffer::{Dst, Src, WORD};
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use crate::base::prefetch;
use newest::Newest;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// What lies before the body of what is put as a whole, in words: one that says what it is, nothing, the length of the body, and
/// nothing.
pub type Head = [u64; 4];
const HEAD_BYTES: usize = size_of::<Head>();
const FIRST: usize = 0;
const LEN: usize = 2;

/// How far one side has come. All zero bytes are a beginning.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct Cursor {
    position: AtomicU64,
    /// In the writer's: it waits for room.
    waits: AtomicU32,
    /// In the writer's: where it went on when it rewound last. In the reader's: up to where it had read all there was, when it
    /// looked last.
    turn: AtomicU64,
    /// In the writer's.
    newest: Newest,
}

impl Cursor {
    /// How far its owner says that it has come.
    pub fn position(&self) -> u64 {
        self.position.load(Ordering::Acquire)
    }
}

#[cfg(any(test, fuzzing))]
impl Cursor {
    /// What a rank that has gone wrong says of its position.
    pub fn claim(&self, position: u64) {
        self.position.store(position, Ordering::Release);
    }
}

const _: () = assert!(size_of::<Cursor>() == 128);

/// Where one ring lies.
#[derive(Clone, Copy, Debug)]
pub struct Ring<'a> {
    /// The writer's.
    pub written: &'a Cursor,
    /// The reader's.
    pub read: &'a Cursor,
    /// The bytes.
    pub bytes: Dst<'a>,
}

/// The writing end.
#[derive(Debug)]
pub struct Writer {
    from: Rank,
    to: Rank,
    /// Everything before this is written.
    position: u64,
    /// Everything before this is published.
    published: u64,
    /// So many bytes of the ring have their memory.
    reserved: usize,
    /// Everything before this had been read when it was last looked at.
    read: u64,
    /// Something was put as a whole, and nothing after it.
    has_newest: bool,
}

/// The reading end.
#[derive(Debug)]
pub struct Reader {
    from: Rank,
    to: Rank,
    /// Everything before this is read.
    position: u64,
    /// Everything before this is given back to the writer.
    released: u64,
    /// Everything before this had been written when it was last looked at.
    written: u64,
    /// That everything before this is read has been said, for a writer that would rewind.
    told: u64,
}

impl Writer {
    /// The beginning of the ring from one rank to another.
    pub fn new(from: Rank, to: Rank) -> Self {
        Self { from, to, position: 0, published: 0, reserved: 0, read: 0, has_newest: false }
    }

    /// Writes the parts, one after another, as far as there is room; how many bytes that was. The reader sees
    /// them after [`Writer::publish`].
    ///
    /// # Errors
    /// `Internal` where the reader's position makes no sense; `OutOfMemory` or `System` where a part of the ring is used
    /// for the first time and cannot be given memory.
    pub fn write(&mut self, region: &Region, parts: &[Src<'_>]) -> Result<usize> {
        let ring = region.ring(self.from, self.to);
        let wanted: usize = parts.iter().map(|part| part.len()).sum();
        let mut room = self.room(&ring)?;
        if room < wanted {
            self.look(&ring);
            room = self.room(&ring)?;
        }
        self.reserve(region, &ring, wanted.min(room))?;
        if std::mem::take(&mut self.has_newest) {
            ring.written.newest.forget();
        }
        let mut written = 0;
        for part in parts {
            let len = part.len().min(room - written);
            copy_in(ring.bytes, self.position, part.slice(0, len));
            self.position += len as u64;
            written += len;
        }
        Ok(written)
    }

    /// Writes a body behind the [head](Head) that has this first word, and publishes both, as [`Writer::publish`] does, if
    /// there is room for all of it; true if so.
    pub fn put_whole(&mut self, region: &Region, first: u64, body: Src<'_>) -> bool {
        let wanted = HEAD_BYTES + body.len();
        let ring = region.ring(self.from, self.to);
        self.rewind(&ring);
        let has_room = |it: &Self| it.room(&ring).is_ok_and(|room| room >= wanted);
        if !has_room(self) {
            self.look(&ring);
            if !has_room(self) {
                return false;
            }
        }
        if self.reserve(region, &ring, wanted).is_err() {
            // Whoever writes there says why.
            return false;
        }
        let start = self.position;
        self.position += wanted as u64;
        self.published = self.position;
        put_head(&ring, start, first, body.len() as u64);
        put_body(&ring, start + HEAD_BYTES as u64, body);
        // What is in one cache line is stored at once: whoever looks at it takes it away between two stores.
        ring.written.newest.keep(start, first, body);
        self.has_newest = true;
        ring.written.position.store(self.position, Ordering::Release);
        true
    }

    /// Goes on at the beginning of the ring, if that is worth it and everything is read.
    fn rewind(&mut self, ring: &Ring<'_>) {
        let (start, straight) = place(ring.bytes, self.position);
        if (start as u64) < TURN_BYTES || self.published != self.position {
            return;
        }
        if ring.read.turn.load(Ordering::Acquire) == self.position {
            self.position += straight as u64;
            (self.published, self.read) = (self.position, self.position);
            ring.written.turn.store(self.position, Ordering::Relaxed);
        }
    }

    /// Makes sure that there is memory behind what is written next.
    fn reserve(&mut self, region: &Region, ring: &Ring<'_>, len: usize) -> Result<()> {
        if self.reserved < ring.bytes.len() {
            let (start, straight) = place(ring.bytes, self.position);
            // What goes on at the beginning has been there before.
            let end = start + len.min(straight);
            self.reserved = region.reserve_ring(self.from, self.to, self.reserved, end)?;
        }
        Ok(())
    }

    /// How many bytes the reader has not been shown.
    pub fn unpublished(&self) -> usize {
        usize::try_from(self.position - self.published).unwrap_or(usize::MAX)
    }

    /// Shows the reader what was written; false where that is nothing new. The caller then puts a `fence(SeqCst)`
    /// and rings for the reader.
    pub fn publish(&mut self, region: &Region) -> bool {
        if self.published == self.position {
            return false;
        }
        self.published = self.position;
        let ring = region.ring(self.from, self.to);
        ring.written.position.store(self.position, Ordering::Release);
        true
    }

    /// Asks to be rung for once there is room; true where there is some already.
    ///
    /// # Errors
    /// As [`Writer::write`].
    pub fn wait_for_room(&mut self, region: &Region) -> Result<bool> {
        let ring = region.ring(self.from, self.to);
        ring.written.waits.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.look(&ring);
        Ok(self.room(&ring)? > 0)
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

/// Whether anything was ever written from one rank to another.
pub fn has_begun(region: &Region, from: Rank, to: Rank) -> bool {
    region.ring(from, to).written.position() != 0
}

impl Reader {
    /// The beginning of the ring from one rank to another.
    pub fn new(from: Rank, to: Rank) -> Self {
        Self { from, to, position: 0, released: 0, written: 0, told: 0 }
    }

    /// Takes what has come, as far as there is room; how many bytes that was.
    ///
    /// # Errors
    /// `Internal` where the writer's position makes no sense.
    pub fn read(&mut self, region: &Region, into: Dst<'_>) -> Result<usize> {
        let ring = region.ring(self.from, self.to);
        if self.written == self.position {
            self.look(&ring)?;
        }
        let len = self.held(&ring)?.min(into.len());
        copy_out(ring.bytes, self.position, into.slice(0, len));
        self.position += len as u64;
        Ok(len)
    }

    /// Whether anything has come since what was taken last.
    #[inline]
    pub fn has_more(&self, ring: &Ring<'_>) -> bool {
        ring.written.position() != self.position
    }

    /// What has come since what was taken last, where all of that was put as one whole and its beginning lies beside the writer's
    /// position.
    ///
    /// # Errors
    /// As [`Reader::read`].
    pub fn newest(&mut self, ring: &Ring<'_>) -> Result<Option<Beside>> {
        let held = self.look(ring)?;
        let newest = ring.written.newest.look(self.position);
        Ok(newest.filter(|newest| held == HEAD_BYTES + newest.len))
    }

    /// Takes it: its body, which is as long as `into`.
    ///
    /// # Errors
    /// As [`Reader::take_seen`].
    pub fn take_newest(&mut self, ring: &Ring<'_>, seen: Beside, into: Dst<'_>) -> Result<()> {
        if !ring.written.newest.take(seen, into) {
            return match self.take_seen(ring, (HEAD_BYTES, 0), into)? {
                true => Ok(()),
                false => Err(Error::internal("less has come than was seen")),
            };
        }
        self.position += (HEAD_BYTES + seen.len) as u64;
        self.tell(ring);
        Ok(())
    }

    /// Takes so many bytes that were seen.
    ///
    /// # Errors
    /// `Internal` where so many have not come.
    pub fn skip(&mut self, ring: &Ring<'_>, len: usize) -> Result<()> {
        if self.held(ring)? < len {
            return Err(Error::internal("less has come than was seen"));
        }
        self.position += len as u64;
        Ok(())
    }

    /// The ring itself.
    pub fn ring<'a>(&self, region: &'a Region) -> Ring<'a> {
        region.ring(self.from, self.to)
    }

    /// Everything before this is taken.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Takes what [`Reader::peek`] has shown, and as much more as fills `into`, a piece whenever one comes. Looks so often for
    /// one; false where it has not come by then: all of it is still there.
    ///
    /// # Errors
    /// As [`Reader::read`].
    pub fn take_seen(
        &mut self,
        ring: &Ring<'_>,
        (seen, looks): (usize, u32),
        into: Dst<'_>,
    ) -> Result<bool> {
        let mut taken = 0;
        while taken < into.len() {
            let here = self.held(ring)?.saturating_sub(seen).min(into.len());
            if here < taken {
                return Err(nonsense());
            }
            copy_out(
                ring.bytes,
                self.position + (seen + taken) as u64,
                into.slice(taken, here - taken),
            );
            taken = here;
            if taken < into.len() {
                let written = self.written;
                if !(0..looks).any(|_| ring.written.position() != written) {
                    return Ok(false);
                }
                self.look(ring)?;
            }
        }
        self.position += (seen + taken) as u64;
        self.tell(ring);
        Ok(true)
    }

    /// Copies what comes next, if that fills `into`, and leaves it there. How many bytes have come; 0 where they do not
    /// fill it.
    ///
    /// # Errors
    /// As [`Reader::read`].
    pub fn peek(&mut self, ring: &Ring<'_>, into: Dst<'_>) -> Result<usize> {
        let held = self.look(ring)?;
        if held < into.len() {
            return Ok(0);
        }
        // All lines are on their way at once, not those behind the head once that is here.
        lines(ring.bytes, self.position, held).for_each(prefetch::to_read);
        copy_out(ring.bytes, self.position, into);
        Ok(held)
    }

    /// Looks how far the writer has come, and goes where it goes on; how many bytes have come.
    #[inline]
    fn look(&mut self, ring: &Ring<'_>) -> Result<usize> {
        self.written = ring.written.position.load(Ordering::Acquire);
        let turn = ring.written.turn.load(Ordering::Relaxed);
        // One behind what is written has been made since, and what lies there is seen by another look.
        if turn > self.position && turn <= self.written {
            if turn - self.position > ring.bytes.len() as u64 {
                return Err(nonsense());
            }
            (self.position, self.told) = (turn, turn);
        }
        self.held(ring)
    }

    /// Tells a writer that would rewind, every now and then, that there is nothing more to read.
    fn tell(&mut self, ring: &Ring<'_>) {
        if self.position - self.told >= TURN_BYTES && self.position == self.written {
            self.told = self.position;
            ring.read.turn.store(self.position, Ordering::Release);
        }
    }

    fn held(&self, ring: &Ring<'_>) -> Result<usize> {
        let held = self.written.checked_sub(self.position);
        let held = held.and_then(|held| usize::try_from(held).ok());
        held.filter(|&held| held <= ring.bytes.len()).ok_or_else(nonsense)
    }

    /// Gives the room of what was read back; true where the writer waits for it and has to be rung for.
    pub fn release(&mut self, region: &Region) -> bool {
        if self.released == self.position {
            return false;
        }
        self.released = self.position;
        let ring = region.ring(self.from, self.to);
        ring.read.position.store(self.position, Ordering::Release);
        fence(Ordering::SeqCst);
        ring.written.waits.load(Ordering::Relaxed) != 0
            && ring.written.waits.swap(0, Ordering::Relaxed) != 0
    }

    /// The same once that is a part of the ring that is worth the trouble: less than that never keeps a writer waiting, since
    /// a ring that is full otherwise has more that this reader will take.
    pub fn release_in_parts(&mut self, region: &Region) -> bool {
        let kept = self.position - self.released;
        kept >= region.ring_bytes() as u64 / 4 && self.release(region)
    }
}

#[cold]
fn nonsense() -> Error {
    Error::internal("a ring in shared memory claims more bytes than it has room for")
}

/// Where a position lies, and how many bytes there are from there to the end.
fn place(bytes: Dst<'_>, position: u64) -> (usize, usize) {
    let size = bytes.len();
    // A power of two, of which the remainder needs no division.
    let start = usize::try_from(position & (size as u64).wrapping_sub(1)).unwrap_or(0);
    (start, size - start)
}

/// After so many bytes a writer rewinds if it can: more than the nearest cache holds, out of which another core gets a line more
/// slowly than out of the next one, and a small part of that.
const TURN_BYTES: u64 = 64 << 10;

/// What is fetched ahead at most, about as much as a core has under way at once; and in what steps.
const AHEAD_BYTES: usize = 1 << 10;
const LINE_BYTES: usize = 64;

/// The cache lines of so many bytes, or of the first of them, as far as they lie before the end.
fn lines(bytes: Dst<'_>, position: u64, len: usize) -> impl Iterator<Item = *const u8> {
    let (start, straight) = place(bytes, position);
    let end = start + len.min(straight).min(AHEAD_BYTES);
    (start..end).step_by(LINE_BYTES).map(move |at| bytes.as_src().as_ptr().wrapping_add(at))
}

/// In how many pieces a whole that is put is shown, and how long each is at least: a reader that is close behind takes lines away
/// that the writer is about to write (messages of 8 KiB took a fifth longer in pieces of 2 KiB).
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
    copy_in(ring.bytes, start, Src::from(words.as_flattened()));
}

/// Puts a body; a reader that looks takes one piece while the next is put.
fn put_body(ring: &Ring<'_>, start: u64, body: Src<'_>) {
    pieces(body).fold(start, |place, piece| {
        copy_in(ring.bytes, place, piece);
        let end = place + piece.len() as u64;
        // The last one is shown by whoever has put the whole.
        if end - start < body.len() as u64 {
            ring.written.position.store(end, Ordering::Release);
        }
        end
    });
}

fn copy_in(bytes: Dst<'_>, position: u64, from: Src<'_>) {
    let (start, straight) = place(bytes, position);
    if from.len() <= straight {
        return bytes.slice(start, from.len()).copy_from(from);
    }
    bytes.slice(start, straight).copy_from(from.slice(0, straight));
    let rest = from.len() - straight;
    bytes.slice(0, rest).copy_from(from.slice(straight, rest));
}

fn copy_out(bytes: Dst<'_>, position: u64, into: Dst<'_>) {
    let (start, straight) = place(bytes, position);
    if into.len() <= straight {
        return into.copy_from(bytes.as_src().slice(start, into.len()));
    }
    into.slice(0, straight).copy_from(bytes.as_src().slice(start, straight));
    let rest = into.len() - straight;
    into.slice(straight, rest).copy_from(bytes.as_src().slice(0, rest));
}
