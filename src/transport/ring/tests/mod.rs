//! Tests of a ring alone, without messages. The test has the writer and the reader of the ring.

mod rewind;

use super::inline_copy::LEN_BITS;
use super::memory::{HEADER_BYTES, locate};
use super::*;
use crate::base::buffer::{Dst, Src, WORD};
use crate::transport::inproc::HeapRegion;
use crate::transport::{Region, RegionGeometry, ReusePolicy};
use std::sync::atomic::Ordering;

fn default_region() -> Region {
    region_with_reuse(ReusePolicy::WhileCached)
}

fn region_with_reuse(reuse: ReusePolicy) -> Region {
    region_of_ranks(2, reuse)
}

fn region_of_ranks(ranks: usize, reuse: ReusePolicy) -> Region {
    let geometry = RegionGeometry::within_host(ranks, 4096, reuse);
    let heap = HeapRegion::zeroed(geometry.bytes().unwrap()).unwrap();
    Region::new(geometry, Box::new(heap)).unwrap()
}

/// Returns the bytes of a record in a ring: its header and its body.
fn record_bytes(first: u64, body: &[u8]) -> Vec<u8> {
    let head = [first, 0, body.len() as u64, 0].map(u64::to_le_bytes);
    [head.as_flattened(), body].concat()
}

#[test]
fn bytes_arrive_in_order_over_many_laps() {
    let region = default_region();
    let (mut writer, mut reader) = (RingWriter::new(0, 1), RingReader::new(0, 1));
    let size = region.geometry().ring_bytes();
    let (mut sent, mut got) = (0u64, 0u64);
    let mut step = 1;
    while got < 20 * size as u64 {
        step = step * 7 % 40_009;
        let bytes: Vec<u8> = (0..step).map(|i| ((sent + i as u64) % 251) as u8).collect();
        let (one, two) = bytes.split_at(bytes.len() / 3);
        sent += writer.write(&region, &[Src::from(one), Src::from(two)]).unwrap() as u64;
        writer.publish(&region);
        let mut back = vec![0; step * 3 % 40_009];
        let taken = reader.read(&region, Dst::from(back.as_mut_slice())).unwrap();
        reader.release(&region);
        for byte in &back[..taken] {
            assert_eq!(u64::from(*byte), got % 251);
            got += 1;
        }
    }
    assert!(sent - got <= size as u64);
}

#[test]
fn full_ring_accepts_nothing_and_reader_wakes_writer() {
    let region = default_region();
    let (mut writer, mut reader) = (RingWriter::new(1, 0), RingReader::new(1, 0));
    let bytes = vec![1; region.geometry().ring_bytes() + 1];
    assert_eq!(writer.write(&region, &[Src::from(bytes.as_slice())]).unwrap(), bytes.len() - 1);
    assert_eq!(writer.write(&region, &[Src::from(&bytes[..1])]).unwrap(), 0);
    // Bytes that are not published are not visible.
    let mut byte = [0];
    assert_eq!(reader.read(&region, Dst::from(&mut byte[..])).unwrap(), 0);
    assert!(writer.publish(&region) && !writer.publish(&region));
    assert!(!writer.request_room_wakeup(&region).unwrap());
    assert_eq!(reader.read(&region, Dst::from(&mut byte[..])).unwrap(), 1);
    assert!(reader.release(&region));
    assert!(!reader.release(&region));
    assert!(writer.request_room_wakeup(&region).unwrap());
    assert_eq!(writer.write(&region, &[Src::from(&bytes[..2])]).unwrap(), 1);
}

#[test]
fn records_are_peeked_and_taken_over_many_laps() {
    let region = default_region();
    let ring = region.ring(0, 1);
    let (mut writer, mut reader) = (RingWriter::new(0, 1), RingReader::new(0, 1));
    let size = region.geometry().ring_bytes();
    let too_much = vec![0; size];
    let mut next = (0..=250u8).cycle();
    for number in 0..10 * size as u64 / 100 {
        let body: Vec<u8> = next.by_ref().take(68).collect();
        assert!(writer.write_record(&region, number, Src::from(body.as_slice())));
        assert!(!writer.write_record(&region, number, Src::from(too_much.as_slice())));
        let mut seen = [0; 32];
        assert_eq!(reader.peek(&ring, Dst::from(&mut seen[..])).unwrap(), 100);
        let mut rest = [0; 68];
        assert!(reader.take_peeked(&ring, 32, 0, Dst::from(&mut rest[..])).unwrap());
        assert_eq!([&seen[..], &rest].concat(), record_bytes(number, &body));
        assert_eq!(reader.peek(&ring, Dst::from(&mut seen[..])).unwrap(), 0);
        assert!(!reader.take_peeked(&ring, 0, 9, Dst::from(&mut seen[..1])).unwrap());
        reader.release(&region);
    }
}

#[test]
fn partial_record_stays_until_it_is_complete() {
    const LONGEST: usize = 40_000;
    let (region, messages) = (default_region(), 2000_usize);
    let len = |number: usize| number * 7919 % LONGEST;
    let bytes: Vec<u8> = (0..251).cycle().take(LONGEST + 251).collect();
    let content = |number: usize| &bytes[number % 251..][..len(number)];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut writer = RingWriter::new(0, 1);
            for number in 0..messages {
                while !writer.write_record(&region, number as u64, Src::from(content(number))) {
                    std::thread::yield_now();
                }
            }
        });
        let (ring, mut reader) = (region.ring(0, 1), RingReader::new(0, 1));
        let (mut into, mut failed_takes) = (vec![0; LONGEST], 0);
        for number in 0..messages {
            let into = Dst::from(&mut into[..len(number)]);
            let mut head = [0; HEADER_BYTES];
            while reader.peek(&ring, Dst::from(&mut head[..])).unwrap() == 0 {
                std::thread::yield_now();
            }
            let place = reader.position();
            while !reader.take_peeked(&ring, HEADER_BYTES, 1, into).unwrap() {
                assert_eq!(reader.position(), place);
                failed_takes += 1;
            }
            assert_eq!(
                copy_bytes(into.as_src()),
                content(number),
                "record {number}, {failed_takes} failed takes"
            );
            reader.release(&region);
        }
    });
}

#[test]
fn writer_position_that_moves_back_is_an_error() {
    let region = default_region();
    let ring = region.ring(0, 1);
    let (mut writer, mut reader) = (RingWriter::new(0, 1), RingReader::new(0, 1));
    let (mut head, mut into) = ([0; HEADER_BYTES], [0; 1000]);
    assert_eq!(writer.write(&region, &[Src::from(&[7; 500][..])]).unwrap(), 500);
    assert!(writer.publish(&region));
    assert_eq!(reader.peek(&ring, Dst::from(&mut head[..])).unwrap(), 500);
    ring.writer_cursor.corrupt_position(100);
    assert!(reader.take_peeked(&ring, HEADER_BYTES, 9, Dst::from(&mut into[..])).is_err());
    assert_eq!(reader.position(), 0);
}

#[test]
fn inline_copy_is_valid_until_the_next_write() {
    let region = default_region();
    let ring = region.ring(0, 1);
    let (mut writer, mut reader) = (RingWriter::new(0, 1), RingReader::new(0, 1));
    let bytes: Vec<u8> = (1..=200).collect();
    let put = |writer: &mut RingWriter, len: usize| {
        assert!(writer.write_record(&region, 7, Src::from(&bytes[..len])));
    };
    let is_beside = |reader: &mut RingReader| reader.peek_inline(&ring).unwrap().is_some();
    let mut into = [0; 168];
    for len in (0..=17).chain([31, 32, 33, 95, INLINE_BODY_BYTES, INLINE_BODY_BYTES + 1, 160]) {
        put(&mut writer, len);
        let seen = reader.peek_inline(&ring).unwrap().unwrap();
        assert_eq!((seen.first_word, seen.len), (7, len));
        into[len] = 255;
        let room = Dst::from(&mut into[..]);
        // The body is exactly as long as the record says.
        assert!(reader.take_inline(&ring, seen, room.slice(0, len + 1)).is_err());
        assert!(reader.take_inline(&ring, seen, room.slice(0, len)).is_ok());
        assert_eq!((&into[..len], into[len]), (&bytes[..len], 255));
        assert!(!is_beside(&mut reader));
    }
    // The copy is not valid if there are two unread records, or a record and other bytes after it.
    let into = Dst::from(&mut into[..]);
    for writes_record in [true, false] {
        put(&mut writer, 10);
        let seen = reader.peek_inline(&ring).unwrap().unwrap();
        match writes_record {
            true => put(&mut writer, 5),
            false => assert_eq!(writer.write(&region, &[Src::from(&bytes[..37])]).unwrap(), 37),
        }
        writer.publish(&region);
        assert!(!is_beside(&mut reader));
        // The record of an earlier snapshot is still in the ring.
        reader.take_inline(&ring, seen, into.slice(0, 10)).unwrap();
        assert_eq!(into.as_src().slice(0, 10).word(2), Src::from(&bytes[..10]).word(2));
        assert_eq!(reader.read(&region, into).unwrap(), HEADER_BYTES + 5);
    }
    // A faulty rank's length in the stamp.
    let stamp = reader.position() << LEN_BITS | 127;
    ring.writer_cursor.inline_copy.stamp.end_write(stamp);
    assert!(!is_beside(&mut reader));
}

#[test]
fn concurrent_inline_reads_are_consistent() {
    const MESSAGES: u64 = 200_000;
    let region = default_region();
    let ring = region.ring(0, 1);
    let len = |number: u64| usize::try_from(number).unwrap() % (INLINE_BODY_BYTES + 1);
    let content = |number: u64| [number.to_le_bytes(); INLINE_BODY_BYTES / WORD];
    std::thread::scope(|scope| {
        let written = scope.spawn(|| {
            let mut writer = RingWriter::new(0, 1);
            for number in 0..MESSAGES {
                let bytes = content(number);
                let body = Src::from(&bytes.as_flattened()[..len(number)]);
                while !writer.write_record(&region, number, body) {
                    std::thread::yield_now();
                }
            }
        });
        let (mut reader, mut beside) = (RingReader::new(0, 1), 0);
        for number in 0..MESSAGES {
            let (mut head, mut body, len) =
                ([0; HEADER_BYTES], [0; INLINE_BODY_BYTES], len(number));
            let into = Dst::from(&mut body[..len]);
            loop {
                if let Some(seen) = reader.peek_inline(&ring).unwrap() {
                    assert_eq!((seen.first_word, seen.len), (number, len));
                    reader.take_inline(&ring, seen, into).unwrap();
                    beside += 1;
                    break;
                }
                if reader.peek(&ring, Dst::from(&mut head[..])).unwrap() > 0 {
                    assert!(reader.take_peeked(&ring, HEADER_BYTES, 0, into).unwrap());
                    assert_eq!(head[..], record_bytes(number, &body[..len])[..HEADER_BYTES]);
                    break;
                }
                std::thread::yield_now();
            }
            assert_eq!(body[..len], content(number).as_flattened()[..len]);
            reader.release(&region);
        }
        written.join().unwrap();
        assert!(beside > 0);
    });
}

#[test]
fn lazy_release_waits_for_a_quarter_of_the_ring() {
    let region = default_region();
    let (mut writer, mut reader) = (RingWriter::new(0, 1), RingReader::new(0, 1));
    let bytes = vec![1; region.geometry().ring_bytes()];
    let (part, mut into) = (bytes.len() / 4, vec![0; bytes.len()]);
    assert_eq!(writer.write(&region, &[Src::from(bytes.as_slice())]).unwrap(), bytes.len());
    assert!(writer.publish(&region) && !writer.request_room_wakeup(&region).unwrap());
    reader.read(&region, Dst::from(&mut into[..part - 1])).unwrap();
    assert!(!reader.release_lazily(&region) && !writer.request_room_wakeup(&region).unwrap());
    reader.read(&region, Dst::from(&mut into[..1])).unwrap();
    assert!(reader.release_lazily(&region) && writer.request_room_wakeup(&region).unwrap());
}

#[test]
fn invalid_position_is_an_error() {
    let region = default_region();
    let mut byte = [0];
    for position in [u64::MAX, region.geometry().ring_bytes() as u64 + 1] {
        let ring = region.ring(0, 1);
        ring.writer_cursor.position.store(position, Ordering::Relaxed);
        let mut reader = RingReader::new(0, 1);
        assert!(reader.read(&region, Dst::from(&mut byte[..])).is_err());
        ring.reader_cursor.position.store(position, Ordering::Relaxed);
        let mut writer = RingWriter::new(0, 1);
        assert!(writer.request_room_wakeup(&region).is_err());
    }
}

#[test]
fn stream_longer_than_the_ring_arrives_complete() {
    const LENS: [usize; 6] = [1, 9_000, 262_144, 1_000_003, 64, 300_001];
    let region = default_region();
    let body = |round: usize, len: usize| -> Vec<u8> {
        (0..len).map(|i| (i * 31 + (i >> 8) + round).to_le_bytes()[0]).collect()
    };
    for is_bulk in [false, true] {
        let (mut writer, mut reader) = match is_bulk {
            false => (RingWriter::new(0, 1), RingReader::new(0, 1)),
            true => (RingWriter::new_bulk(0, 1), RingReader::new_bulk(0, 1)),
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for (round, len) in LENS.into_iter().enumerate() {
                    let (bytes, mut sent) = (body(round, len), 0);
                    while sent < len {
                        sent +=
                            writer.write_stream(&region, 10, Src::from(&bytes[sent..])).unwrap();
                        std::thread::yield_now();
                    }
                }
            });
            for (round, len) in LENS.into_iter().enumerate() {
                let (mut bytes, mut got) = (vec![0; len], 0);
                while got < len {
                    got += reader.read_stream(&region, 10, Dst::from(&mut bytes[got..])).unwrap();
                    std::thread::yield_now();
                }
                assert!(bytes == body(round, len), "{is_bulk} {round}");
            }
        });
        assert!(!writer.is_drained(&region) || !reader.has_more(&reader.ring(&region)));
    }
}

#[test]
fn release_after_stream_reports_a_sleeping_writer() {
    let region = default_region();
    let (mut writer, mut reader) = (RingWriter::new_bulk(0, 1), RingReader::new_bulk(0, 1));
    let (bytes, mut into) = (vec![7; 600_000], vec![0; 600_000]);
    let sent = writer.write_stream(&region, 0, Src::from(bytes.as_slice())).unwrap();
    assert!(sent < bytes.len() && !writer.can_write(&region, 1) && !writer.is_drained(&region));
    assert!(!writer.request_room_wakeup(&region).unwrap());
    assert_eq!(reader.read_stream(&region, 1, Dst::from(into.as_mut_slice())).unwrap(), sent);
    assert!(reader.release(&region) && !reader.release(&region));
    assert!(writer.is_drained(&region) && writer.can_write(&region, sent));
    assert!(into[..sent].iter().all(|&byte| byte == 7));
}

fn copy_bytes(view: Src<'_>) -> Vec<u8> {
    let mut bytes = vec![0; view.len()];
    Dst::from(&mut bytes[..]).copy_from(view);
    bytes
}
