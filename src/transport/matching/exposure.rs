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
pub(super) const EXPOSURE_SLOT_COUNT: u16 = 1024;

/// Numbers begin at 1: a word of 0 is a free place.
const READING_ALL: u64 = 0;
const EXPOSED: u64 = 1;
const READING: u64 = 2;
const SPLIT: u64 = 3;

/// One rank's mark. All zero bytes are one whose rank is not there yet.
#[derive(Debug, Default)]
#[repr(C)]
pub struct ProcessCookie {
    /// Where in the memory of its process the mark lies; 0 until it does.
    address: AtomicU64,
    cookie: [AtomicU64; 2],
}

/// The words for one rank's buffers. All zero bytes are those of a rank that lends none.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct ExposureWords([AtomicU64; EXPOSURE_SLOT_COUNT as usize]);

impl Default for ExposureWords {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; EXPOSURE_SLOT_COUNT as usize])
    }
}

/// One rank's. The two lie apart, since the one is written by every rank and the other by few.
#[derive(Clone, Copy, Debug)]
pub struct ExposureTable<'a> {
    /// By which others recognise it.
    pub cookie: &'a ProcessCookie,
    /// What it lends.
    pub words: &'a ExposureWords,
}

/// The places of a desk that are free.
#[derive(Debug, Default)]
pub(super) struct FreeExposureSlots {
    /// Those that were in use before.
    released: Vec<u16>,
    /// From this one on, none ever was.
    next_unused: u16,
}

impl FreeExposureSlots {
    /// One that is free.
    pub(super) fn acquire(&mut self) -> Option<u16> {
        self.released.pop().or_else(|| {
            let place = self.next_unused;
            self.next_unused = (place < EXPOSURE_SLOT_COUNT).then_some(place + 1)?;
            Some(place)
        })
    }

    /// It is free again.
    pub(super) fn release(&mut self, slot: u16) {
        self.released.push(slot);
    }
}

impl<'a> ExposureTable<'a> {
    /// The owner says where its mark lies, and what it is.
    pub(super) fn publish_cookie(&self, address: u64, cookie: [u64; 2]) {
        for (cell, word) in self.cookie.cookie.iter().zip(cookie) {
            cell.store(word, Ordering::Relaxed);
        }
        self.cookie.address.store(address, Ordering::Release);
    }

    /// Where the owner's mark lies, and what it is.
    pub(super) fn cookie(&self) -> Option<(u64, [u64; 2])> {
        let address = self.cookie.address.load(Ordering::Acquire);
        let mark = std::array::from_fn(|i| self.cookie.cookie[i].load(Ordering::Relaxed));
        (address != 0).then_some((address, mark))
    }

    /// The owner lends the buffer of a message. Numbers are never used twice.
    pub(super) fn expose(&self, slot: u16, number: u64) {
        if let Some(cell) = self.slot_word(slot) {
            cell.store(encode_word(number, EXPOSED), Ordering::Release);
        }
    }

    /// A borrower begins to read; false where the buffer is not lent any more.
    pub(super) fn begin_read(&self, slot: u16, number: u64) -> bool {
        self.transition(slot, encode_word(number, EXPOSED), encode_word(number, READING))
    }

    /// A borrower that has begun cannot read, and does not; false where the owner writes.
    pub(super) fn cancel_read(&self, slot: u16, number: u64) -> bool {
        let back =
            |from| self.transition(slot, encode_word(number, from), encode_word(number, EXPOSED));
        back(READING) || back(READING_ALL)
    }

    /// The owner begins to write the back to the buffer of the borrower; false where that reads it
    /// itself.
    pub(super) fn begin_split(&self, slot: u16, number: u64) -> bool {
        self.transition(slot, encode_word(number, READING), encode_word(number, SPLIT))
    }

    /// The borrower reads all of it; false where the owner has begun to write the back.
    pub(super) fn read_all(&self, slot: u16, number: u64) -> bool {
        self.transition(slot, encode_word(number, READING), encode_word(number, READING_ALL))
    }

    /// The owner takes the buffer back; false where it is being read.
    pub(super) fn withdraw(&self, slot: u16, number: u64) -> bool {
        self.transition(slot, encode_word(number, EXPOSED), 0)
    }

    /// The owner knows that nobody reads the buffer any more.
    pub(super) fn release_slot(&self, slot: u16) {
        if let Some(cell) = self.slot_word(slot) {
            cell.store(0, Ordering::Release);
        }
    }

    fn transition(&self, slot: u16, from: u64, to: u64) -> bool {
        self.slot_word(slot).is_some_and(|cell| {
            cell.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
        })
    }

    fn slot_word(&self, place: u16) -> Option<&'a AtomicU64> {
        self.words.0.get(usize::from(place))
    }
}

fn encode_word(number: u64, state: u64) -> u64 {
    number << 2 | state
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn exposed_buffer_is_either_read_or_withdrawn() {
        let (mark, lent) = (&ProcessCookie::default(), &ExposureWords::default());
        let desk = ExposureTable { cookie: mark, words: lent };
        let start = Barrier::new(2);
        for number in 1..500 {
            desk.expose(3, number);
            let (read, taken) = std::thread::scope(|scope| {
                let reader = std::thread::Builder::new()
                    .spawn_scoped(scope, || {
                        start.wait();
                        desk.begin_read(3, number)
                    })
                    .unwrap();
                start.wait();
                let taken = desk.withdraw(3, number);
                (reader.join().unwrap(), taken)
            });
            assert!(read != taken);
            // Nobody reads what was taken back, also when the place serves another message.
            desk.expose(3, number + 1000);
            assert!(!desk.begin_read(3, number));
            desk.release_slot(3);
        }
        desk.expose(3, 5000);
        assert!(desk.begin_read(3, 5000) && !desk.withdraw(3, 5000));
        assert!(desk.cancel_read(3, 5000));
        assert!(desk.withdraw(3, 5000) && !desk.begin_read(3, 5000));
        // Either the owner writes the back, or the borrower reads it.
        for number in [6000, 6001] {
            desk.expose(3, number);
            assert!(
                !desk.begin_split(3, number)
                    && !desk.read_all(3, number)
                    && desk.begin_read(3, number)
            );
            let shares = number == 6000;
            assert!(if shares { desk.begin_split(3, number) } else { desk.read_all(3, number) });
            assert!(!desk.begin_split(3, number) && !desk.read_all(3, number));
            assert!(!desk.withdraw(3, number) && !desk.begin_read(3, number));
            assert_eq!(desk.cancel_read(3, number), !shares);
            desk.release_slot(3);
        }
        assert!(!desk.begin_read(EXPOSURE_SLOT_COUNT, 1));
    }

    #[test]
    fn exposure_slot_is_used_once_until_released() {
        let mut places = FreeExposureSlots::default();
        let all: Vec<u16> = std::iter::from_fn(|| places.acquire()).collect();
        assert_eq!(all, (0..EXPOSURE_SLOT_COUNT).collect::<Vec<_>>());
        places.release(7);
        assert_eq!((places.acquire(), places.acquire()), (Some(7), None));
    }

    #[test]
    fn cookie_is_visible_after_publication() {
        let (mark, lent) = (&ProcessCookie::default(), &ExposureWords::default());
        let desk = ExposureTable { cookie: mark, words: lent };
        assert_eq!(desk.cookie(), None);
        desk.publish_cookie(16, [1, 2]);
        assert_eq!(desk.cookie(), Some((16, [1, 2])));
    }
}
