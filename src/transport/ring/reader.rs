//! The reading end.

use super::{
    Beside, HEAD_BYTES, LINE_BYTES, Region, Ring, STREAMED, Way, copy_out, nonsense, place,
};
use crate::base::buffer::Dst;
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use crate::base::processor;
use crate::base::spin;
use std::sync::atomic::{Ordering, fence};

/// The reading end.
#[derive(Debug)]
pub struct Reader {
    way: Way,
    /// Everything before this is read.
    position: u64,
    /// Everything before this is given back to the writer, and whether it waits for that has been
    /// asked.
    released: u64,
    /// Everything before this had been written when it was last looked at.
    written: u64,
    /// That everything before this is read has been said, for a writer that would rewind.
    pub(super) told: u64,
}

impl Reader {
    /// The beginning of the ring from one rank to another.
    pub fn new(from: Rank, to: Rank) -> Self {
        Self::of(Way { from, to, is_lane: false })
    }

    /// The beginning of the lane of one rank, for another.
    pub fn of_lane(from: Rank, to: Rank) -> Self {
        Self::of(Way { from, to, is_lane: true })
    }

    fn of(way: Way) -> Self {
        Self { way, position: 0, released: 0, written: 0, told: 0 }
    }

    /// Takes what has come, as far as there is room; how many bytes that was.
    ///
    /// # Errors
    /// `Internal` where the writer's position makes no sense.
    pub fn read(&mut self, region: &Region, into: Dst<'_>) -> Result<usize> {
        let ring = self.way.ring(region);
        if self.written == self.position {
            self.look(&ring)?;
        }
        let len = self.held(&ring)?.min(into.len());
        copy_out(ring.bytes, self.position, into.slice(0, len));
        self.position += len as u64;
        Ok(len)
    }

    /// Takes what comes until `into` is full, while the writer writes more; looks so often for it
    /// where nothing is there. How many bytes that was. The caller [releases](Reader::release)
    /// them.
    ///
    /// # Errors
    /// As [`Reader::read`].
    pub fn stream(&mut self, region: &Region, looks: u32, into: Dst<'_>) -> Result<usize> {
        let ring = self.way.ring(region);
        let piece = ring.bytes.len() / STREAMED;
        let mut taken = 0;
        while taken < into.len() && spin::look_whether(looks, || self.has_more(&ring)) {
            taken += self.read(region, into.slice(taken, (into.len() - taken).min(piece)))?;
            // A writer that looks for room has some; whether one sleeps is asked later.
            ring.read.position.store(self.position, Ordering::Release);
        }
        Ok(taken)
    }

    /// Looks so often until something has come, and asks for what lies beside the position then,
    /// which may be as long.
    #[inline]
    pub fn look_for(&self, ring: &Ring<'_>, len: usize, looks: u32) {
        if spin::look_whether(looks, || self.has_more(ring)) {
            ring.written.newest.expect(len);
        }
    }

    /// Whether anything has come since what was taken last.
    #[inline]
    pub fn has_more(&self, ring: &Ring<'_>) -> bool {
        ring.written.position() != self.position
    }

    /// What has come since what was taken last, where all of that was put as one whole and its
    /// beginning lies beside the writer's position.
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
        self.way.ring(region)
    }

    /// Everything before this is taken.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Takes what [`Reader::peek`] has shown, and as much more as fills `into`, a piece whenever
    /// one comes. Looks so often for one; false where it has not come by then: all of it is still
    /// there.
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
                if !spin::look_whether(looks, || ring.written.position() != written) {
                    return Ok(false);
                }
                self.look(ring)?;
            }
        }
        self.position += (seen + taken) as u64;
        self.tell(ring);
        Ok(true)
    }

    /// Copies what comes next, if that fills `into`, and leaves it there. How many bytes have come;
    /// 0 where they do not fill it.
    ///
    /// # Errors
    /// As [`Reader::read`].
    pub fn peek(&mut self, ring: &Ring<'_>, into: Dst<'_>) -> Result<usize> {
        let held = self.look(ring)?;
        if held < into.len() {
            return Ok(0);
        }
        // All lines are on their way at once, not those behind the head once that is here.
        lines(ring.bytes, self.position, held).for_each(processor::prefetch_to_read);
        copy_out(ring.bytes, self.position, into);
        Ok(held)
    }

    /// Looks how far the writer has come, and goes where it goes on; how many bytes have come.
    #[inline]
    pub(super) fn look(&mut self, ring: &Ring<'_>) -> Result<usize> {
        self.written = ring.written.position.load(Ordering::Acquire);
        let turn = ring.written.turn.load(Ordering::Relaxed);
        // One behind what is written has been made since, and what lies there is seen by another
        // look.
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
        if self.position - self.told >= ring.turn.told() && self.position == self.written {
            self.told = self.position;
            ring.read.turn.store(self.position, Ordering::Release);
        }
    }

    fn held(&self, ring: &Ring<'_>) -> Result<usize> {
        let held = self.written.checked_sub(self.position);
        let held = held.and_then(|held| usize::try_from(held).ok());
        held.filter(|&held| held <= ring.bytes.len()).ok_or_else(nonsense)
    }

    /// Gives the room of what was read back; true where the writer waits for it and has to be rung
    /// for.
    pub fn release(&mut self, region: &Region) -> bool {
        if self.released == self.position {
            return false;
        }
        self.released = self.position;
        let ring = self.way.ring(region);
        ring.read.position.store(self.position, Ordering::Release);
        fence(Ordering::SeqCst);
        ring.written.waits.load(Ordering::Relaxed) != 0
            && ring.written.waits.swap(0, Ordering::Relaxed) != 0
    }

    /// The same once that is a part of the ring that is worth the trouble: less than that never
    /// keeps a writer waiting, since a ring that is full otherwise has more that this reader will
    /// take.
    pub fn release_in_parts(&mut self, region: &Region) -> bool {
        let kept = self.position - self.released;
        kept >= region.ring_bytes() as u64 / 4 && self.release(region)
    }
}

/// What is fetched ahead at most, about as much as a core has under way at once; and in what steps.
const AHEAD_BYTES: usize = 1 << 10;

/// The cache lines of so many bytes, or of the first of them, as far as they lie before the end.
fn lines(bytes: Dst<'_>, position: u64, len: usize) -> impl Iterator<Item = *const u8> {
    let (start, straight) = place(bytes, position);
    let end = start + len.min(straight).min(AHEAD_BYTES);
    (start..end).step_by(LINE_BYTES).map(move |at| bytes.as_src().as_ptr().wrapping_add(at))
}
