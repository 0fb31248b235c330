//! What a rank keeps in shared memory for its messages: a mark by which others recognise its
//! process when they read its memory, and a word for each buffer that it lends to be read.
//!
//! A lent buffer belongs to its owner again once the word says so, whatever the borrower does or
//! fails to do:
//!
//! ```text
//! free -> lent(number) -> being read(number) -> free (the borrower has said that it is done)
//!              |      ^          |      |
//!              |      +----------+      +-> shared(number), once the owner writes the back to the borrower's buffer,
//!              |   the borrower cannot  |   or kept(number), once the borrower reads that too: then to free as well
//!              |   read it
//!              v
//!   free (taken back at once); from the others it cannot be taken back: the owner fails the group before it goes on
//! ```
//!
//! Both ways out of *lent*, and those from *being read* to *shared* and *kept*, are one
//! compare-and-swap, so that exactly one side wins. A borrower that was stopped in the middle of
//! reading finds the group failed when it looks after its last read, and reports no success.

use std::sync::atomic::{AtomicU64, Ordering};

/// How many buffers a rank lends at once.
pub(super) const PLACES: u16 = 1024;

/// Numbers begin at 1: a word of 0 is a free place.
const KEPT: u64 = 0;
const LENT: u64 = 1;
const READ: u64 = 2;
const SHARED: u64 = 3;

/// One rank's mark. All zero bytes are one whose rank is not there yet.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Mark {
    /// Where in the memory of its process the mark lies; 0 until it does.
    address: AtomicU64,
    mark: [AtomicU64; 2],
}

/// The words for one rank's buffers. All zero bytes are those of a rank that lends none.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct Lent([AtomicU64; PLACES as usize]);

impl Default for Lent {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; PLACES as usize])
    }
}

/// One rank's. The two lie apart, since the one is written by every rank and the other by few.
#[derive(Clone, Copy, Debug)]
pub struct Desk<'a> {
    /// By which others recognise it.
    pub mark: &'a Mark,
    /// What it lends.
    pub lent: &'a Lent,
}

/// The places of a desk that are free.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// Those that were in use before.
    freed: Vec<u16>,
    /// From this one on, none ever was.
    fresh: u16,
}

impl Places {
    /// One that is free.
    pub(super) fn take(&mut self) -> Option<u16> {
        self.freed.pop().or_else(|| {
            let place = self.fresh;
            self.fresh = (place < PLACES).then_some(place + 1)?;
            Some(place)
        })
    }

    /// It is free again.
    pub(super) fn give_back(&mut self, place: u16) {
        self.freed.push(place);
    }
}

impl<'a> Desk<'a> {
    /// The owner says where its mark lies, and what it is.
    pub(super) fn show_mark(&self, address: u64, mark: [u64; 2]) {
        for (cell, word) in self.mark.mark.iter().zip(mark) {
            cell.store(word, Ordering::Relaxed);
        }
        self.mark.address.store(address, Ordering::Release);
    }

    /// Where the owner's mark lies, and what it is.
    pub(super) fn mark(&self) -> Option<(u64, [u64; 2])> {
        let address = self.mark.address.load(Ordering::Acquire);
        let mark = std::array::from_fn(|i| self.mark.mark[i].load(Ordering::Relaxed));
        (address != 0).then_some((address, mark))
    }

    /// The owner lends the buffer of a message. Numbers are never used twice.
    pub(super) fn lend(&self, place: u16, number: u64) {
        if let Some(cell) = self.place(place) {
            cell.store(word(number, LENT), Ordering::Release);
        }
    }

    /// A borrower begins to read; false where the buffer is not lent any more.
    pub(super) fn begin(&self, place: u16, number: u64) -> bool {
        self.swap(place, word(number, LENT), word(number, READ))
    }

    /// A borrower that has begun cannot read, and does not; false where the owner writes.
    pub(super) fn give_back(&self, place: u16, number: u64) -> bool {
        let back = |from| self.swap(place, word(number, from), word(number, LENT));
        back(READ) || back(KEPT)
    }

    /// The owner begins to write the back to the buffer of the borrower; false where that reads it
    /// itself.
    pub(super) fn share(&self, place: u16, number: u64) -> bool {
        self.swap(place, word(number, READ), word(number, SHARED))
    }

    /// The borrower reads all of it; false where the owner has begun to write the back.
    pub(super) fn keep(&self, place: u16, number: u64) -> bool {
        self.swap(place, word(number, READ), word(number, KEPT))
    }

    /// The owner takes the buffer back; false where it is being read.
    pub(super) fn take_back(&self, place: u16, number: u64) -> bool {
        self.swap(place, word(number, LENT), 0)
    }

    /// The owner knows that nobody reads the buffer any more.
    pub(super) fn clear(&self, place: u16) {
        if let Some(cell) = self.place(place) {
            cell.store(0, Ordering::Release);
        }
    }

    fn swap(&self, place: u16, from: u64, to: u64) -> bool {
        self.place(place).is_some_and(|cell| {
            cell.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
        })
    }

    fn place(&self, place: u16) -> Option<&'a AtomicU64> {
        self.lent.0.get(usize::from(place))
    }
}

fn word(number: u64, state: u64) -> u64 {
    number << 2 | state
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn a_lent_buffer_is_either_read_or_taken_back() {
        let (mark, lent) = (&Mark::default(), &Lent::default());
        let desk = Desk { mark, lent };
        let start = Barrier::new(2);
        for number in 1..500 {
            desk.lend(3, number);
            let (read, taken) = std::thread::scope(|scope| {
                let reader = std::thread::Builder::new()
                    .spawn_scoped(scope, || {
                        start.wait();
                        desk.begin(3, number)
                    })
                    .unwrap();
                start.wait();
                let taken = desk.take_back(3, number);
                (reader.join().unwrap(), taken)
            });
            assert!(read != taken);
            // Nobody reads what was taken back, also when the place serves another message.
            desk.lend(3, number + 1000);
            assert!(!desk.begin(3, number));
            desk.clear(3);
        }
        desk.lend(3, 5000);
        assert!(desk.begin(3, 5000) && !desk.take_back(3, 5000));
        assert!(desk.give_back(3, 5000));
        assert!(desk.take_back(3, 5000) && !desk.begin(3, 5000));
        // Either the owner writes the back, or the borrower reads it.
        for number in [6000, 6001] {
            desk.lend(3, number);
            assert!(!desk.share(3, number) && !desk.keep(3, number) && desk.begin(3, number));
            let shares = number == 6000;
            assert!(if shares { desk.share(3, number) } else { desk.keep(3, number) });
            assert!(!desk.share(3, number) && !desk.keep(3, number));
            assert!(!desk.take_back(3, number) && !desk.begin(3, number));
            assert_eq!(desk.give_back(3, number), !shares);
            desk.clear(3);
        }
        assert!(!desk.begin(PLACES, 1));
    }

    #[test]
    fn every_place_is_taken_once_until_it_is_given_back() {
        let mut places = Places::default();
        let all: Vec<u16> = std::iter::from_fn(|| places.take()).collect();
        assert_eq!(all, (0..PLACES).collect::<Vec<_>>());
        places.give_back(7);
        assert_eq!((places.take(), places.take()), (Some(7), None));
    }

    #[test]
    fn the_mark_is_seen_once_it_is_there() {
        let (mark, lent) = (&Mark::default(), &Lent::default());
        let desk = Desk { mark, lent };
        assert_eq!(desk.mark(), None);
        desk.show_mark(16, [1, 2]);
        assert_eq!(desk.mark(), Some((16, [1, 2])));
    }
}
