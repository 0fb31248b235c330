//! Loom models of a byte ring: its positions, the wake-up of a writer that waits for room, the
//! rewind, and the inline copy. The bytes of the ring are words here. Loom checks that the protocol
//! orders each write of a word and each read of it.

use super::inline_copy::InlineCopy;
use super::memory::{ByteRing, RewindPolicy, RingCursor};
use super::reader::RingReader;
use crate::base::buffer::{Dst, Src};
use crate::base::sync::{AtomicU64, Ordering, ProtectedCell};
use loom::sync::Arc;
use loom::thread;

/// The number of words of the ring in the models.
const WORDS: usize = 2;

struct RingModel {
    writer_cursor: RingCursor,
    reader_cursor: RingCursor,
    words: [AtomicU64; WORDS],
    accesses: [ProtectedCell<()>; WORDS],
}

impl RingModel {
    fn new() -> Self {
        Self {
            writer_cursor: RingCursor::default(),
            reader_cursor: RingCursor::default(),
            words: Default::default(),
            accesses: std::array::from_fn(|_| ProtectedCell::new(())),
        }
    }

    fn index(position: u64) -> usize {
        usize::try_from(position).unwrap() % WORDS
    }

    /// Writes word number `position`, and publishes it.
    fn write(&self, position: u64) {
        let index = Self::index(position);
        let _checked = self.accesses[index].for_write();
        self.words[index].store(100 + position, Ordering::Relaxed);
        self.writer_cursor.publish(position + 1);
    }

    fn read(&self, position: u64) {
        let index = Self::index(position);
        let _checked = self.accesses[index].for_read();
        assert_eq!(self.words[index].load(Ordering::Relaxed), 100 + position);
    }

    fn has_room(&self, position: u64) -> bool {
        self.reader_cursor.position() + WORDS as u64 > position
    }
}

/// The reader reads each word that the writer writes, and the writer overwrites only words that
/// the reader has read.
#[test]
fn loom_ring_words_arrive_in_order() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let ring = Arc::new(RingModel::new());
        let of_reader = Arc::clone(&ring);
        let reading = thread::spawn(move || {
            for position in 0..WORDS as u64 + 1 {
                while of_reader.writer_cursor.position() <= position {
                    thread::yield_now();
                }
                of_reader.read(position);
                of_reader.reader_cursor.publish(position + 1);
            }
        });
        for position in 0..WORDS as u64 + 1 {
            while !ring.has_room(position) {
                thread::yield_now();
            }
            ring.write(position);
        }
        reading.join().unwrap();
    });
}

/// A writer that finds no room requests a wake-up. Either it then finds room, or the reader finds
/// the request.
#[test]
fn loom_writer_of_a_full_ring_is_woken() {
    loom::model(|| {
        let ring = Arc::new(RingModel::new());
        (0..WORDS as u64).for_each(|position| ring.write(position));
        let of_reader = Arc::clone(&ring);
        let reading = thread::spawn(move || {
            of_reader.read(0);
            of_reader.reader_cursor.publish(1);
            of_reader.writer_cursor.take_room_request()
        });
        ring.writer_cursor.request_room();
        let has_room = ring.has_room(WORDS as u64);
        if has_room {
            ring.write(WORDS as u64);
        }
        let is_woken = reading.join().unwrap();
        assert!(has_room || is_woken, "the wake-up is lost");
    });
}

/// The reader has read word 0 and reports this. The writer then skips word 1, and writes word 2 to
/// the place of word 0. A reader that finds position 3 continues at word 2.
#[test]
fn loom_reader_follows_a_rewind() {
    loom::model(|| {
        let ring = Arc::new(RingModel::new());
        ring.write(0);
        let of_reader = Arc::clone(&ring);
        let reading = thread::spawn(move || {
            let policy =
                RewindPolicy { rewind_after: 1, max_short_body: 8, long_body_offset: None };
            let mut bytes = [0; WORDS];
            let view = ByteRing {
                writer_cursor: &of_reader.writer_cursor,
                reader_cursor: &of_reader.reader_cursor,
                bytes: Dst::from(&mut bytes[..]),
                rewind: &policy,
            };
            let mut reader = RingReader::new(0, 1);
            assert_eq!(reader.refresh(&view).unwrap(), 1);
            of_reader.read(0);
            reader.skip(&view, 1).unwrap();
            reader.report_drained(&view);
            while reader.refresh(&view).unwrap() == 0 {
                thread::yield_now();
            }
            assert_eq!(reader.position(), 2);
            of_reader.read(2);
        });
        while !ring.reader_cursor.is_drained(1) {
            thread::yield_now();
        }
        ring.writer_cursor.rewind_to(2);
        ring.write(2);
        reading.join().unwrap();
    });
}

/// A reader of the inline copy gets the body of the record at its position, or nothing.
#[test]
fn loom_inline_copy_is_that_of_its_record() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let body = |position: u64| [position, position + 1].map(u64::to_le_bytes).concat();
        let copy = Arc::new(InlineCopy::default());
        let of_writer = Arc::clone(&copy);
        let writing = thread::spawn(move || {
            for position in [0, 48] {
                of_writer.publish(position, 7 * position, Src::from(&body(position)[..]));
            }
        });
        for position in [0, 48] {
            let Some(found) = copy.snapshot(position) else { continue };
            assert_eq!((found.first_word, found.len), (7 * position, 16));
            let mut into = [0; 16];
            if copy.copy_body(found, Dst::from(&mut into[..])) {
                assert_eq!(into[..], body(position)[..]);
            }
        }
        writing.join().unwrap();
        assert!(copy.snapshot(0).is_none() && copy.snapshot(48).is_some());
    });
}
