//! Where in the ring a writer goes on.

use super::*;

#[test]
fn a_writer_rewinds_once_all_is_read_and_not_before() {
    let region = region();
    let ring = region.ring(0, 1);
    let (mut writer, mut reader) = (Writer::new(0, 1), Reader::new(0, 1));
    let size = region.geometry().ring_bytes() as u64;
    let mut into = [0; 1000];
    let into = Dst::from(&mut into[..]);
    let body = |number: u64| [number.to_le_bytes(); 125];
    let put = |writer: &mut Writer, number: u64| {
        assert!(writer.put_whole(&region, number, Src::from(body(number).as_flattened())));
    };
    let take = |reader: &mut Reader, number: u64| {
        let mut head = [0; HEAD_BYTES];
        assert!(reader.peek(&ring, Dst::from(&mut head[..])).unwrap() > 0);
        assert_eq!(head[..], whole(number, body(number).as_flattened())[..HEAD_BYTES]);
        assert!(reader.take_seen(&ring, (HEAD_BYTES, 0), into).unwrap());
        assert!((0..1000).step_by(WORD).all(|at| into.as_src().word(at) == number));
    };
    // One by one: no more than a part of the ring is used.
    let most = usize::try_from(ring.turn.bytes).unwrap() + 3 * 1032;
    assert!(most < ring.bytes.len());
    for number in 0..1000 {
        put(&mut writer, number);
        assert!(place(ring.bytes, writer.position()).0 <= most, "{number}");
        take(&mut reader, number);
    }
    assert!(writer.position() > 10 * size && ring.read.position() == 0);
    // With one always on its way, the lap is gone through, and the room given back as ever.
    put(&mut writer, 0);
    let lap = writer.position() / size;
    for number in 1..6 * size / 1032 {
        put(&mut writer, number);
        take(&mut reader, number - 1);
        reader.release(&region);
    }
    assert!((lap + 4..=lap + 7).contains(&(writer.position() / size)));
    // A full ring is full after a turn, too.
    take(&mut reader, 6 * size / 1032 - 1);
    let turns = |writer: &Writer, reader: &Reader| {
        place(ring.bytes, writer.position()).0 as u64 >= ring.turn.bytes
            && reader.told == writer.position()
    };
    while !turns(&writer, &reader) {
        put(&mut writer, 0);
        take(&mut reader, 0);
    }
    (0..)
        .take_while(|&number| {
            let body = body(number);
            writer.put_whole(&region, number, Src::from(body.as_flattened()))
        })
        .for_each(drop);
    let held = reader.look(&ring).unwrap() as u64;
    assert!(held <= size && held > size - 1032, "{held}");
}

#[test]
fn short_bodies_stay_at_the_beginning_and_long_ones_go_on_apart() {
    let region = used_again(Reuse::Late);
    let ring = region.ring(0, 1);
    let (short, long) = (ring.turn.longest, 5 * ring.turn.longest);
    let (mut writer, mut reader) = (Writer::new(0, 1), Reader::new(0, 1));
    let mut pass = |number: u64, len: usize, reads_at_once: bool| -> usize {
        let body = vec![number.to_le_bytes()[0]; len];
        assert!(writer.put_whole(&region, number, Src::from(body.as_slice())));
        let start = place(ring.bytes, writer.position() - (HEAD_BYTES + len) as u64).0;
        if reads_at_once {
            let (mut head, mut into) = ([0; HEAD_BYTES], vec![0; len]);
            assert!(reader.peek(&ring, Dst::from(&mut head[..])).unwrap() > 0);
            let into = Dst::from(into.as_mut_slice());
            assert!(reader.take_seen(&ring, (HEAD_BYTES, 0), into).unwrap());
            assert!(
                (0..len / WORD).all(|at| into.as_src().word(at * WORD).to_le_bytes()[0] == body[0])
            );
        }
        start
    };
    let beginning = usize::try_from(ring.turn.bytes).unwrap() + short + HEAD_BYTES;
    let apart = ring.turn.apart.unwrap();
    assert!(beginning <= apart);
    let (mut laps, mut last) = (0, 0);
    for number in 0..2000 {
        assert!(pass(2 * number, short - 8 * (number % 7) as usize, true) <= beginning, "{number}");
        let start = pass(2 * number + 1, long, true);
        assert!(start >= apart, "{number} {start}");
        // Behind the last one, or in the next lap.
        assert!(start == last + HEAD_BYTES + long || start == apart || last == 0, "{number}");
        laps += u32::from(start < last);
        last = start;
    }
    assert!(laps > 5);
    // A long one goes on where it is while something before it has not been read.
    let start = pass(0, short, false);
    assert!(start <= beginning);
    assert_eq!(pass(0, long, false), start + HEAD_BYTES + short);
}

#[test]
fn the_place_of_the_next_body_is_known_where_bodies_go_ahead() {
    let region = used_again(Reuse::Late);
    let ring = region.ring(0, 1);
    let mut writer = Writer::new(0, 1);
    let place = |writer: &Writer, len| {
        let next = writer.next_place(&ring, len);
        (next.as_mut_ptr().addr() - ring.bytes.as_mut_ptr().addr(), next.len())
    };
    let body = vec![1; 4096];
    assert!(writer.put_whole(&region, 1, Src::from(body.as_slice())));
    let (start, len) = place(&writer, body.len());
    assert_eq!((start, len), (HEAD_BYTES + body.len(), HEAD_BYTES + body.len()));
    writer.claim_next(&region, body.len());
    assert!(writer.put_whole(&region, 2, Src::from(body.as_slice())));
    assert_eq!(bytes_of(ring.bytes.slice(start, len).as_src()), whole(2, &body));
    // Short ones go back to the beginning, and long ones have too many lines.
    assert!([64, 16 << 10].iter().all(|&len| place(&writer, len).1 == 0));
    // Up to the end of the ring.
    let rest = vec![0; ring.bytes.len() - 2 * len - 100];
    assert_eq!(writer.write(&region, &[Src::from(rest.as_slice())]).unwrap(), rest.len());
    assert_eq!(place(&writer, body.len()), (ring.bytes.len() - 100, 100));
    writer.claim_next(&region, body.len());
    // Where all go back, nothing is known.
    let region = region_of(8, Reuse::Late);
    let writer = Writer::new(0, 1);
    assert_eq!(writer.next_place(&region.ring(0, 1), body.len()).len(), 0);
}

#[test]
fn a_turn_that_makes_no_sense_is_an_error_and_one_that_is_not_shown_yet_is_none() {
    let region = region();
    let ring = region.ring(0, 1);
    let size = region.geometry().ring_bytes() as u64;
    let claim = |turn: u64, position: u64| {
        ring.written.turn.store(turn, Ordering::Relaxed);
        ring.written.claim(position);
        Reader::new(0, 1).look(&ring)
    };
    assert!(claim(size + 1, size + 1).is_err());
    assert!(claim(u64::MAX, u64::MAX).is_err());
    assert_eq!(claim(size, 0).unwrap(), 0);
    assert_eq!(claim(size, size + 40).unwrap(), 40);
}

#[test]
fn back_and_forth_between_threads_everything_comes_while_the_ring_is_rewound() {
    const MESSAGES: u64 = 100_000;
    let region = region();
    let body = |number: u64| [number.to_le_bytes(); 60];
    let len = |number: u64| usize::try_from(number * 7 % 480).unwrap();
    let put = |writer: &mut Writer, number: u64| {
        let bytes = body(number);
        let bytes = Src::from(&bytes.as_flattened()[..len(number)]);
        // Now and then as one that was posted is.
        if number.is_multiple_of(13) {
            let head = whole(number, &bytes_of(bytes));
            assert_eq!(writer.write(&region, &[Src::from(&head[..])]).unwrap(), head.len());
            assert!(writer.publish(&region));
        } else {
            assert!(writer.put_whole(&region, number, bytes));
        }
    };
    let take = |reader: &mut Reader, number: u64| {
        let ring = reader.ring(&region);
        let (mut head, mut into) = ([0; HEAD_BYTES], [0; 480]);
        let into = Dst::from(&mut into[..len(number)]);
        while reader.peek(&ring, Dst::from(&mut head[..])).unwrap() == 0 {
            std::thread::yield_now();
        }
        assert_eq!(head, whole(number, &body(number).as_flattened()[..len(number)])[..HEAD_BYTES]);
        assert!(reader.take_seen(&ring, (HEAD_BYTES, 0), into).unwrap());
        assert_eq!(bytes_of(into.as_src()), body(number).as_flattened()[..len(number)]);
        reader.release_in_parts(&region);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut writer, mut reader) = (Writer::new(1, 0), Reader::new(0, 1));
            for number in 0..MESSAGES {
                take(&mut reader, number);
                put(&mut writer, number);
            }
        });
        let (mut writer, mut reader) = (Writer::new(0, 1), Reader::new(1, 0));
        for number in 0..MESSAGES {
            put(&mut writer, number);
            take(&mut reader, number);
        }
        let laps = writer.position() / region.geometry().ring_bytes() as u64;
        let needed = MESSAGES * 272 / region.geometry().ring_bytes() as u64;
        assert!(laps > 2 * needed, "it was rewound: {laps} laps of {needed}");
    });
}
