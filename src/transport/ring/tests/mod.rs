//! The ring alone, with both its ends here.

mod turns;

use super::newest::LEN_BITS;
use super::*;
use crate::base::buffer::WORD;
use crate::transport::inproc::Heap;
use crate::transport::{Geometry, Reuse};

fn region() -> Region {
    used_again(Reuse::Soon)
}

fn used_again(reuse: Reuse) -> Region {
    region_of(2, reuse)
}

fn region_of(ranks: usize, reuse: Reuse) -> Region {
    let geometry = Geometry { ranks, slot_bytes: 4096, reuse };
    let heap = Heap::zeroed(geometry.bytes().unwrap()).unwrap();
    Region::new(geometry, Box::new(heap)).unwrap()
}

/// What lies in a ring once this has been put as a whole.
fn whole(first: u64, body: &[u8]) -> Vec<u8> {
    let head = [first, 0, body.len() as u64, 0].map(u64::to_le_bytes);
    [head.as_flattened(), body].concat()
}

#[test]
fn bytes_come_out_as_they_went_in_many_times_around() {
    let region = region();
    let (mut writer, mut reader) = (Writer::new(0, 1), Reader::new(0, 1));
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
fn a_full_ring_takes_nothing_and_its_reader_learns_who_waits() {
    let region = region();
    let (mut writer, mut reader) = (Writer::new(1, 0), Reader::new(1, 0));
    let bytes = vec![1; region.geometry().ring_bytes() + 1];
    assert_eq!(writer.write(&region, &[Src::from(bytes.as_slice())]).unwrap(), bytes.len() - 1);
    assert_eq!(writer.write(&region, &[Src::from(&bytes[..1])]).unwrap(), 0);
    // What is not published is not there.
    let mut byte = [0];
    assert_eq!(reader.read(&region, Dst::from(&mut byte[..])).unwrap(), 0);
    assert!(writer.publish(&region) && !writer.publish(&region));
    assert!(!writer.wait_for_room(&region).unwrap());
    assert_eq!(reader.read(&region, Dst::from(&mut byte[..])).unwrap(), 1);
    assert!(reader.release(&region));
    assert!(!reader.release(&region));
    assert!(writer.wait_for_room(&region).unwrap());
    assert_eq!(writer.write(&region, &[Src::from(&bytes[..2])]).unwrap(), 1);
}

#[test]
fn what_is_put_as_a_whole_is_seen_and_taken_many_times_around() {
    let region = region();
    let ring = region.ring(0, 1);
    let (mut writer, mut reader) = (Writer::new(0, 1), Reader::new(0, 1));
    let size = region.geometry().ring_bytes();
    let too_much = vec![0; size];
    let mut next = (0..=250u8).cycle();
    for number in 0..10 * size as u64 / 100 {
        let body: Vec<u8> = next.by_ref().take(68).collect();
        assert!(writer.put_whole(&region, number, Src::from(body.as_slice())));
        assert!(!writer.put_whole(&region, number, Src::from(too_much.as_slice())));
        let mut seen = [0; 32];
        assert_eq!(reader.peek(&ring, Dst::from(&mut seen[..])).unwrap(), 100);
        let mut rest = [0; 68];
        assert!(reader.take_seen(&ring, (32, 0), Dst::from(&mut rest[..])).unwrap());
        assert_eq!([&seen[..], &rest].concat(), whole(number, &body));
        assert_eq!(reader.peek(&ring, Dst::from(&mut seen[..])).unwrap(), 0);
        assert!(!reader.take_seen(&ring, (0, 9), Dst::from(&mut seen[..1])).unwrap());
        reader.release(&region);
    }
}

#[test]
fn a_whole_is_taken_while_it_comes_and_stays_where_it_does_not() {
    const LONGEST: usize = 40_000;
    let (region, messages) = (region(), 2000_usize);
    let len = |number: usize| number * 7919 % LONGEST;
    let bytes: Vec<u8> = (0..251).cycle().take(LONGEST + 251).collect();
    let content = |number: usize| &bytes[number % 251..][..len(number)];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut writer = Writer::new(0, 1);
            for number in 0..messages {
                while !writer.put_whole(&region, number as u64, Src::from(content(number))) {
                    std::thread::yield_now();
                }
            }
        });
        let (ring, mut reader) = (region.ring(0, 1), Reader::new(0, 1));
        let (mut into, mut vain) = (vec![0; LONGEST], 0);
        for number in 0..messages {
            let into = Dst::from(&mut into[..len(number)]);
            let mut head = [0; HEAD_BYTES];
            while reader.peek(&ring, Dst::from(&mut head[..])).unwrap() == 0 {
                std::thread::yield_now();
            }
            let place = reader.position();
            while !reader.take_seen(&ring, (HEAD_BYTES, 1), into).unwrap() {
                assert_eq!(reader.position(), place);
                vain += 1;
            }
            assert_eq!(bytes_of(into.as_src()), content(number), "{number}, {vain} in vain");
            reader.release(&region);
        }
    });
}

#[test]
fn a_writer_that_goes_back_while_a_whole_is_taken_is_an_error() {
    let region = region();
    let ring = region.ring(0, 1);
    let (mut writer, mut reader) = (Writer::new(0, 1), Reader::new(0, 1));
    let (mut head, mut into) = ([0; HEAD_BYTES], [0; 1000]);
    assert_eq!(writer.write(&region, &[Src::from(&[7; 500][..])]).unwrap(), 500);
    assert!(writer.publish(&region));
    assert_eq!(reader.peek(&ring, Dst::from(&mut head[..])).unwrap(), 500);
    ring.written.claim(100);
    assert!(reader.take_seen(&ring, (HEAD_BYTES, 9), Dst::from(&mut into[..])).is_err());
    assert_eq!(reader.position(), 0);
}

#[test]
fn few_bytes_lie_beside_the_position_until_something_else_is_put() {
    let region = region();
    let ring = region.ring(0, 1);
    let (mut writer, mut reader) = (Writer::new(0, 1), Reader::new(0, 1));
    let bytes: Vec<u8> = (1..=200).collect();
    let put = |writer: &mut Writer, len: usize| {
        assert!(writer.put_whole(&region, 7, Src::from(&bytes[..len])));
    };
    let is_beside = |reader: &mut Reader| reader.newest(&ring).unwrap().is_some();
    let mut into = [0; 168];
    for len in (0..=17).chain([31, 32, 33, 95, NEWEST_BYTES, NEWEST_BYTES + 1, 160]) {
        put(&mut writer, len);
        let seen = reader.newest(&ring).unwrap().unwrap();
        assert_eq!((seen.first, seen.len), (7, len));
        into[len] = 255;
        let room = Dst::from(&mut into[..]);
        // As much as there is, and no more.
        assert!(reader.take_newest(&ring, seen, room.slice(0, len + 1)).is_err());
        assert!(reader.take_newest(&ring, seen, room.slice(0, len)).is_ok());
        assert_eq!((&into[..len], into[len]), (&bytes[..len], 255));
        assert!(!is_beside(&mut reader));
    }
    // Two at once, and one with something behind it.
    let into = Dst::from(&mut into[..]);
    for then in [true, false] {
        put(&mut writer, 10);
        let seen = reader.newest(&ring).unwrap().unwrap();
        match then {
            true => put(&mut writer, 5),
            false => assert_eq!(writer.write(&region, &[Src::from(&bytes[..37])]).unwrap(), 37),
        }
        writer.publish(&region);
        assert!(!is_beside(&mut reader));
        // What was seen before is in the ring.
        reader.take_newest(&ring, seen, into.slice(0, 10)).unwrap();
        assert_eq!(into.as_src().slice(0, 10).word(2), Src::from(&bytes[..10]).word(2));
        assert_eq!(reader.read(&region, into).unwrap(), HEAD_BYTES + 5);
    }
    // What a rank that has gone wrong says of its length.
    let stamp = reader.position() << LEN_BITS | 127;
    ring.written.newest.stamp.store(stamp, Ordering::Relaxed);
    assert!(!is_beside(&mut reader));
}

#[test]
fn what_is_read_while_more_is_put_is_whole() {
    const MESSAGES: u64 = 200_000;
    let region = region();
    let ring = region.ring(0, 1);
    let len = |number: u64| usize::try_from(number).unwrap() % (NEWEST_BYTES + 1);
    let content = |number: u64| [number.to_le_bytes(); NEWEST_BYTES / WORD];
    std::thread::scope(|scope| {
        let written = scope.spawn(|| {
            let mut writer = Writer::new(0, 1);
            for number in 0..MESSAGES {
                let bytes = content(number);
                let body = Src::from(&bytes.as_flattened()[..len(number)]);
                while !writer.put_whole(&region, number, body) {
                    std::thread::yield_now();
                }
            }
        });
        let (mut reader, mut beside) = (Reader::new(0, 1), 0);
        for number in 0..MESSAGES {
            let (mut head, mut body, len) = ([0; HEAD_BYTES], [0; NEWEST_BYTES], len(number));
            let into = Dst::from(&mut body[..len]);
            loop {
                if let Some(seen) = reader.newest(&ring).unwrap() {
                    assert_eq!((seen.first, seen.len), (number, len));
                    reader.take_newest(&ring, seen, into).unwrap();
                    beside += 1;
                    break;
                }
                if reader.peek(&ring, Dst::from(&mut head[..])).unwrap() > 0 {
                    assert!(reader.take_seen(&ring, (HEAD_BYTES, 0), into).unwrap());
                    assert_eq!(head[..], whole(number, &body[..len])[..HEAD_BYTES]);
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
fn room_is_given_back_in_parts() {
    let region = region();
    let (mut writer, mut reader) = (Writer::new(0, 1), Reader::new(0, 1));
    let bytes = vec![1; region.geometry().ring_bytes()];
    let (part, mut into) = (bytes.len() / 4, vec![0; bytes.len()]);
    assert_eq!(writer.write(&region, &[Src::from(bytes.as_slice())]).unwrap(), bytes.len());
    assert!(writer.publish(&region) && !writer.wait_for_room(&region).unwrap());
    reader.read(&region, Dst::from(&mut into[..part - 1])).unwrap();
    assert!(!reader.release_in_parts(&region) && !writer.wait_for_room(&region).unwrap());
    reader.read(&region, Dst::from(&mut into[..1])).unwrap();
    assert!(reader.release_in_parts(&region) && writer.wait_for_room(&region).unwrap());
}

#[test]
fn a_position_that_makes_no_sense_is_an_error() {
    let region = region();
    let mut byte = [0];
    for position in [u64::MAX, region.geometry().ring_bytes() as u64 + 1] {
        let ring = region.ring(0, 1);
        ring.written.position.store(position, Ordering::Relaxed);
        let mut reader = Reader::new(0, 1);
        assert!(reader.read(&region, Dst::from(&mut byte[..])).is_err());
        ring.read.position.store(position, Ordering::Relaxed);
        let mut writer = Writer::new(0, 1);
        assert!(writer.wait_for_room(&region).is_err());
    }
}

#[test]
fn a_stream_longer_than_the_ring_comes_through_while_it_is_written() {
    const LENS: [usize; 6] = [1, 9_000, 262_144, 1_000_003, 64, 300_001];
    let region = region();
    let body = |turn: usize, len: usize| -> Vec<u8> {
        (0..len).map(|i| (i * 31 + (i >> 8) + turn).to_le_bytes()[0]).collect()
    };
    for lane in [false, true] {
        let (mut writer, mut reader) = match lane {
            false => (Writer::new(0, 1), Reader::new(0, 1)),
            true => (Writer::of_lane(0, 1), Reader::of_lane(0, 1)),
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for (turn, len) in LENS.into_iter().enumerate() {
                    let (bytes, mut sent) = (body(turn, len), 0);
                    while sent < len {
                        sent += writer.stream(&region, 10, Src::from(&bytes[sent..])).unwrap();
                        std::thread::yield_now();
                    }
                }
            });
            for (turn, len) in LENS.into_iter().enumerate() {
                let (mut bytes, mut got) = (vec![0; len], 0);
                while got < len {
                    got += reader.stream(&region, 10, Dst::from(&mut bytes[got..])).unwrap();
                    std::thread::yield_now();
                }
                assert!(bytes == body(turn, len), "{lane} {turn}");
            }
        });
        assert!(!writer.all_is_read(&region) || !reader.has_more(&reader.ring(&region)));
    }
}

#[test]
fn a_writer_that_sleeps_is_asked_for_after_a_stream_was_read() {
    let region = region();
    let (mut writer, mut reader) = (Writer::of_lane(0, 1), Reader::of_lane(0, 1));
    let (bytes, mut into) = (vec![7; 600_000], vec![0; 600_000]);
    let sent = writer.stream(&region, 0, Src::from(bytes.as_slice())).unwrap();
    assert!(sent < bytes.len() && !writer.makes_room(&region, 1) && !writer.all_is_read(&region));
    assert!(!writer.wait_for_room(&region).unwrap());
    assert_eq!(reader.stream(&region, 1, Dst::from(into.as_mut_slice())).unwrap(), sent);
    assert!(reader.release(&region) && !reader.release(&region));
    assert!(writer.all_is_read(&region) && writer.makes_room(&region, sent));
    assert!(into[..sent].iter().all(|&byte| byte == 7));
}

fn bytes_of(view: Src<'_>) -> Vec<u8> {
    let mut bytes = vec![0; view.len()];
    Dst::from(&mut bytes[..]).copy_from(view);
    bytes
}
