//! The two ranks at work.
#![allow(unsafe_code, reason = "the buffers of two processes are reached by pointers")]

use super::RANKS;
use super::control::{Control, Word, opened};
use super::sums;
use crate::order::{Order, Stamps};
use crate::rank::{Buffers, measure};
use dist::base::buffer::Dst;
use dist::sys::{attach, shm::Segment};
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

/// Sizes of the pieces in which vectors are read out of the other process; and how often each is
/// tried.
const PIECES: [usize; 4] = [16 << 10, 64 << 10, 256 << 10, 1 << 20];
const TRIALS: usize = 5;

const ELEMENT: usize = size_of::<f32>();

/// One of the ranks, which has met the other.
#[derive(Debug)]
pub(super) struct Pair {
    rank: usize,
    control: Control,
    kept: Option<Kept>,
    /// How many pieces of results each has made so far.
    made: [u64; RANKS],
    scratch: Vec<f32>,
}

/// Buffers, and for which orders they are right.
#[derive(Debug)]
struct Kept {
    count: usize,
    is_shared: bool,
    buffers: Buffers,
    other: Other,
    /// Bytes of a piece.
    piece: usize,
}

/// The other rank's buffer.
#[derive(Debug)]
enum Other {
    Mapped(Segment),
    /// In that process, at that address.
    Away(u32, u64),
}

impl Pair {
    /// The two come together.
    pub(super) fn meet(rank: usize, place: &str) -> Result<Self, String> {
        let scratch = vec![0.0; PIECES[PIECES.len() - 1] / ELEMENT];
        let control = Control::meet(rank, place)?;
        Ok(Self { rank, control, kept: None, made: [0; RANKS], scratch })
    }

    /// Carries out an order; nothing where memory of another process may not be read.
    pub(super) fn carry_out(&mut self, order: &Order) -> Result<Option<Stamps>, String> {
        let is_right = |kept: &Kept| (kept.count, kept.is_shared) == (order.count, order.arena);
        if !self.kept.as_ref().is_some_and(is_right) {
            // First those of before: both may not fit.
            self.kept = None;
            let kept = if order.arena { self.map(order)? } else { self.attach(order)? };
            let Some(kept) = kept else { return Ok(None) };
            self.kept = Some(kept);
        }
        let Some(mut kept) = self.kept.take() else { return Err("there are no buffers".into()) };
        if order.verify && !kept.is_shared {
            self.choose_piece(&mut kept)?;
        }
        let stamps = self.measure(order, &mut kept);
        self.kept = Some(kept);
        stamps.map(Some)
    }

    fn measure(&mut self, order: &Order, kept: &mut Kept) -> Result<Stamps, String> {
        let Kept { count, buffers, other, piece, .. } = kept;
        let (mine, rank) = (buffers.output(), self.rank);
        let work = Work { mine: mine.cast(), count: *count, piece: *piece };
        let this = std::cell::RefCell::new(self);
        let meet = || this.borrow_mut().control.barrier();
        measure(order, buffers, (rank, RANKS), meet, meet, || {
            this.borrow_mut().all_reduce(work, other)
        })
    }

    /// Buffers that both map.
    fn map(&mut self, order: &Order) -> Result<Option<Kept>, String> {
        let bytes = order.count * ELEMENT;
        let own = Segment::create(bytes.next_multiple_of(8)).map_err(|error| error.to_string())?;
        let descriptor = u64::try_from(own.as_fd().as_raw_fd()).map_err(|e| e.to_string())?;
        self.control.set(Word::Place, descriptor);
        self.control.barrier()?;
        let (process, place) =
            (self.control.others(Word::Process), self.control.others(Word::Place));
        let other = opened(process, place, own.len())?;
        let buffers = Buffers::in_segment(order, self.rank, RANKS, own);
        // Nobody makes the next one before this one is found.
        self.control.barrier()?;
        let (count, piece) = (order.count, 0);
        Ok(Some(Kept { count, is_shared: true, buffers, other: Other::Mapped(other), piece }))
    }

    /// Buffers of each rank's own, if the other's may be read.
    fn attach(&mut self, order: &Order) -> Result<Option<Kept>, String> {
        let buffers = Buffers::new(order, self.rank, RANKS, None)?;
        let address = u64::try_from(buffers.output().addr()).map_err(|e| e.to_string())?;
        self.control.set(Word::Place, address);
        self.control.barrier()?;
        let (process, place) =
            (self.control.others(Word::Process), self.control.others(Word::Place));
        let process = u32::try_from(process).map_err(|e| e.to_string())?;
        let mut probe = [0u8; ELEMENT];
        let may_read = attach::read(process, place, Dst::from(&mut probe[..])).is_ok();
        self.control.set(Word::Opinion, u64::from(may_read));
        self.control.barrier()?;
        if !may_read || self.control.others(Word::Opinion) == 0 {
            return Ok(None);
        }
        let (count, piece) = (order.count, PIECES[0]);
        let other = Other::Away(process, place);
        Ok(Some(Kept { count, is_shared: false, buffers, other, piece }))
    }

    /// Tries all sizes of pieces; rank 0's quickest is that of both.
    fn choose_piece(&mut self, kept: &mut Kept) -> Result<(), String> {
        let mut best = (Duration::MAX, PIECES[0]);
        let mine = kept.buffers.output().cast();
        for piece in PIECES {
            for _ in 0..TRIALS {
                self.control.barrier()?;
                let began = Instant::now();
                self.all_reduce(Work { mine, count: kept.count, piece }, &kept.other)?;
                best = best.min((began.elapsed(), piece));
            }
        }
        self.control.set(Word::Opinion, best.1 as u64);
        self.control.barrier()?;
        kept.piece = best.1;
        if self.rank != 0 {
            let piece = self.control.others(Word::Opinion);
            kept.piece = usize::try_from(piece).map_err(|error| error.to_string())?;
        }
        // Nobody says anything else before this was heard.
        self.control.barrier()
    }

    fn all_reduce(&mut self, work: Work, other: &Other) -> Result<(), String> {
        self.control.barrier()?;
        match other {
            Other::Mapped(segment) => self.add_half(work, segment),
            Other::Away(process, address) => self.pull(work, *process, *address)?,
        }
        self.control.barrier()
    }

    /// Adds one half, for both.
    fn add_half(&self, work: Work, other: &Segment) {
        let (from, to) = work.half(self.rank);
        let (mine, others) = (work.mine.wrapping_add(from), other.as_mut_ptr().cast::<f32>());
        // SAFETY: both buffers have `count` elements; the other rank uses the other half until the
        // barrier.
        unsafe { sums::into_both(mine, others.wrapping_add(from), to - from) };
    }

    /// Reads and adds one half, then reads the sums of the other one.
    fn pull(&mut self, work: Work, process: u32, address: u64) -> Result<(), String> {
        let read = |at: usize, bytes: usize, into: *mut u8| {
            // SAFETY: so many bytes of a buffer, or of the scratch, which nothing else uses
            // meanwhile.
            let into = unsafe { Dst::new(into, bytes) };
            match attach::read(process, address + at as u64, into) {
                Ok(got) if got == bytes => Ok(()),
                Ok(got) => Err(format!("{got} bytes were read, not {bytes}")),
                Err(cause) => Err(format!("reading the other process: {cause}")),
            }
        };
        for (from, to) in work.pieces(self.rank) {
            let scratch = self.scratch.as_mut_ptr();
            read(from * ELEMENT, (to - from) * ELEMENT, scratch.cast())?;
            // SAFETY: the scratch holds a piece, which lies inside the buffer; the other rank only
            // reads it, later.
            unsafe { sums::into_first(work.mine.wrapping_add(from), scratch, to - from) };
            self.made[self.rank] += 1;
            self.control.set(Word::Made, self.made[self.rank]);
        }
        let other = 1 - self.rank;
        for (from, to) in work.pieces(other) {
            self.made[other] += 1;
            self.control.wait_for(Word::Made, self.made[other])?;
            let into = work.mine.wrapping_add(from).cast();
            read(from * ELEMENT, (to - from) * ELEMENT, into)?;
        }
        Ok(())
    }
}

/// The vector of this rank.
#[derive(Clone, Copy, Debug)]
struct Work {
    mine: *mut f32,
    count: usize,
    /// Bytes of a piece.
    piece: usize,
}

impl Work {
    /// The elements that a rank adds: from one to before another.
    const fn half(&self, rank: usize) -> (usize, usize) {
        let middle = self.count / 2;
        if rank == 0 { (0, middle) } else { (middle, self.count) }
    }

    /// The same in pieces.
    fn pieces(&self, rank: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        let ((from, to), step) = (self.half(rank), (self.piece / ELEMENT).max(1));
        (from..to).step_by(step).map(move |at| (at, to.min(at + step)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pieces_of_both_ranks_are_all() {
        let work = Work { mine: std::ptr::null_mut(), count: 25, piece: 16 };
        let all: Vec<(usize, usize)> = work.pieces(0).chain(work.pieces(1)).collect();
        let expected = [(0, 4), (4, 8), (8, 12), (12, 16), (16, 20), (20, 24), (24, 25)];
        assert_eq!(all, expected);
    }

    #[test]
    fn two_ranks_add_in_both_ways() {
        let place = std::env::temp_dir().join(format!("bound-{}", std::process::id()));
        let place = place.to_str().unwrap().to_owned();
        let orders = [0, 1].map(|shared| {
            let line = format!("run all_reduce f32 sum 70001 1 2 0 1 1 {shared} 0 1");
            Order::parse(&line).unwrap()
        });
        let body = |rank: usize| {
            let mut pair = Pair::meet(rank, &place).unwrap();
            orders.clone().map(|order| pair.carry_out(&order).unwrap())
        };
        let results = std::thread::scope(|scope| {
            [0, 1].map(|rank| scope.spawn(move || body(rank))).map(|rank| rank.join().unwrap())
        });
        std::fs::remove_file(format!("{place}.control")).unwrap();
        for [pulled, direct] in results {
            let direct = direct.unwrap();
            assert_eq!((direct.wrong, direct.calls.len()), (0, 2));
            // A sandbox may forbid that.
            assert!(pulled.is_none_or(|stamps| (stamps.wrong, stamps.calls.len()) == (0, 2)));
        }
    }
}
