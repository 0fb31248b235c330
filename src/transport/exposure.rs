//! The exposure table of a rank: the state of each buffer that the rank exposes, so that another
//! rank of its node (the reader) can read the buffer directly. The table is in shared memory. Next
//! to it is the *process cookie*, a random number by which the reader checks that it reads from the
//! owner's process.
//!
//! Each exposure slot has one atomic word with a message number and a state. The owner may reuse
//! the buffer as soon as the slot is free, whatever the reader does. FIN is the message by which
//! the reader reports that it has finished.
//!
//! ```text
//!              expose               begin_read              release_slot (after FIN)
//!     free ------------> EXPOSED ---------------> READING ------------------------> free
//!                         |   ^                   |  |  |
//!                withdraw |   +---- cancel_read --+  |  +- begin_split -> SPLIT -------> free
//!                         v                          |
//!                        free                        +---- read_all ---> READING_ALL --> free
//!
//! EXPOSED       the owner can withdraw the buffer without waiting
//! READING       the reader reads the front half, or the whole buffer
//! SPLIT         the owner writes the back half to the reader's buffer
//! READING_ALL   the reader also reads the back half; cancel_read leads back to EXPOSED
//!
//! After the owner's report that it writes no more, cancel_split leads from SPLIT back to EXPOSED.
//! ```
//!
//! In the states READING, SPLIT and READING_ALL, the owner cannot withdraw the buffer. If the owner
//! wants the buffer back before the reader has finished, for example after a timeout, it must fail
//! the group first.
//!
//! Each transition out of EXPOSED or READING is one compare-and-swap, so exactly one side wins.
//!
//! After the group has failed, the owner may overwrite the buffer while a reader, for example one
//! that was stopped by SIGSTOP, is still in its read. Such a reader checks for a failure after its
//! last read. It then finds that the group has failed, and does not report success.

use crate::base::ids::Nonce;
use crate::base::sync::{AtomicU64, Ordering};

/// The number of buffers that a rank can expose at the same time. A model needs only a few.
pub const EXPOSURE_SLOT_COUNT: u16 = if cfg!(loom) { 2 } else { 1024 };

// The states of an exposure slot are the lowest two bits of its word. Message numbers begin at 1,
// so no message has the word 0, which is a free slot.
const READING_ALL: u64 = 0;
const EXPOSED: u64 = 1;
const READING: u64 = 2;
const SPLIT: u64 = 3;

/// The process cookie of one rank. A zeroed cookie has not been published yet.
#[derive(Debug, Default)]
#[repr(C)]
pub struct ProcessCookie {
    /// The address of the cookie in the memory of its process; 0 until it is published.
    address: AtomicU64,
    cookie: [AtomicU64; 2],
}

impl ProcessCookie {
    /// Publishes the address and the value of the cookie.
    pub fn publish(&self, address: u64, cookie: [u64; 2]) {
        for (cell, word) in self.cookie.iter().zip(cookie) {
            cell.store(word, Ordering::Relaxed);
        }
        self.address.store(address, Ordering::Release);
    }

    /// Returns the address and the value of the cookie, or `None` if they are not published.
    pub fn get(&self) -> Option<(u64, [u64; 2])> {
        let address = self.address.load(Ordering::Acquire);
        let cookie = std::array::from_fn(|i| self.cookie[i].load(Ordering::Relaxed));
        (address != 0).then_some((address, cookie))
    }
}

/// Returns a process cookie as two words.
pub fn cookie_words(nonce: &Nonce) -> [u64; 2] {
    let words = nonce.0.as_chunks().0;
    [u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1])]
}

/// The words of one rank's exposure slots. Zeroed words are free slots.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct ExposureWords([AtomicU64; EXPOSURE_SLOT_COUNT as usize]);

impl Default for ExposureWords {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

/// One rank's exposure table and process cookie. The two are in different parts of the region,
/// because every rank publishes its cookie, but only some ranks expose buffers.
#[derive(Clone, Copy, Debug)]
pub struct ExposureTable<'a> {
    /// The cookie by which readers recognise the process.
    pub cookie: &'a ProcessCookie,
    /// The words of the exposure slots.
    pub words: &'a ExposureWords,
}

impl<'a> ExposureTable<'a> {
    /// Publishes the address and the value of the owner's cookie.
    pub fn publish_cookie(&self, address: u64, cookie: [u64; 2]) {
        self.cookie.publish(address, cookie);
    }

    /// Returns the address and the value of the owner's cookie, or `None` if they are not
    /// published.
    pub fn cookie(&self) -> Option<(u64, [u64; 2])> {
        self.cookie.get()
    }

    /// Exposes the buffer of message `number`. Called by the owner, which never uses a number
    /// twice.
    pub fn expose(&self, slot: u16, number: u64) {
        if let Some(cell) = self.slot_word(slot) {
            cell.store(encode_word(number, EXPOSED), Ordering::Release);
        }
    }

    /// Begins to read. Called by the reader. Returns false if the buffer is no longer exposed.
    pub fn begin_read(&self, slot: u16, number: u64) -> bool {
        self.transition(slot, encode_word(number, EXPOSED), encode_word(number, READING))
    }

    /// Cancels a read. Called by a reader that has called `begin_read`, but cannot read the buffer.
    /// Returns false if the owner is writing the back half.
    pub fn cancel_read(&self, slot: u16, number: u64) -> bool {
        let back =
            |from| self.transition(slot, encode_word(number, from), encode_word(number, EXPOSED));
        back(READING) || back(READING_ALL)
    }

    /// Begins to write the back half to the reader's buffer. Called by the owner. Returns false if
    /// the reader reads the back half itself.
    pub fn begin_split(&self, slot: u16, number: u64) -> bool {
        self.transition(slot, encode_word(number, READING), encode_word(number, SPLIT))
    }

    /// Claims the back half for the reader. Called by the reader. Returns false if the owner has
    /// begun to write the back half.
    pub fn read_all(&self, slot: u16, number: u64) -> bool {
        self.transition(slot, encode_word(number, READING), encode_word(number, READING_ALL))
    }

    /// Exposes the buffer again after a split transfer. Called by a reader that cannot read its
    /// half, after the owner's report that it writes no more.
    pub fn cancel_split(&self, slot: u16, number: u64) -> bool {
        self.transition(slot, encode_word(number, SPLIT), encode_word(number, EXPOSED))
    }

    /// Withdraws the buffer. Called by the owner. Returns false if the reader is reading the
    /// buffer.
    pub fn withdraw(&self, slot: u16, number: u64) -> bool {
        self.transition(slot, encode_word(number, EXPOSED), 0)
    }

    /// Frees the slot. Called by the owner, which must know that no rank reads the buffer any
    /// more.
    pub fn release_slot(&self, slot: u16) {
        if let Some(cell) = self.slot_word(slot) {
            cell.store(0, Ordering::Release);
        }
    }

    fn transition(&self, slot: u16, from: u64, to: u64) -> bool {
        self.slot_word(slot).is_some_and(|cell| {
            cell.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
        })
    }

    fn slot_word(&self, slot: u16) -> Option<&'a AtomicU64> {
        self.words.0.get(usize::from(slot))
    }
}

fn encode_word(number: u64, state: u64) -> u64 {
    number << 2 | state
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn exposed_buffer_is_either_read_or_withdrawn() {
        let (cookie, words) = (&ProcessCookie::default(), &ExposureWords::default());
        let table = ExposureTable { cookie, words };
        let start = Barrier::new(2);
        for number in 1..500 {
            table.expose(3, number);
            let (read, taken) = std::thread::scope(|scope| {
                let reader = std::thread::Builder::new()
                    .spawn_scoped(scope, || {
                        start.wait();
                        table.begin_read(3, number)
                    })
                    .unwrap();
                start.wait();
                let taken = table.withdraw(3, number);
                (reader.join().unwrap(), taken)
            });
            assert!(read != taken);
            // After a withdrawal, no read of that message can begin, even if the slot serves
            // another message.
            table.expose(3, number + 1000);
            assert!(!table.begin_read(3, number));
            table.release_slot(3);
        }
        table.expose(3, 5000);
        assert!(table.begin_read(3, 5000) && !table.withdraw(3, 5000));
        assert!(table.cancel_read(3, 5000));
        assert!(table.withdraw(3, 5000) && !table.begin_read(3, 5000));
        // Either the owner writes the back half, or the reader reads it.
        for number in [6000, 6001] {
            table.expose(3, number);
            assert!(
                !table.begin_split(3, number)
                    && !table.read_all(3, number)
                    && table.begin_read(3, number)
            );
            let shares = number == 6000;
            assert!(if shares { table.begin_split(3, number) } else { table.read_all(3, number) });
            assert!(!table.begin_split(3, number) && !table.read_all(3, number));
            assert!(!table.withdraw(3, number) && !table.begin_read(3, number));
            assert_eq!(table.cancel_read(3, number), !shares);
            table.release_slot(3);
        }
        assert!(!table.begin_read(EXPOSURE_SLOT_COUNT, 1));
    }

    #[test]
    fn cookie_is_visible_after_publication() {
        let (cookie, words) = (&ProcessCookie::default(), &ExposureWords::default());
        let table = ExposureTable { cookie, words };
        assert_eq!(table.cookie(), None);
        table.publish_cookie(16, [1, 2]);
        assert_eq!(table.cookie(), Some((16, [1, 2])));
    }
}
