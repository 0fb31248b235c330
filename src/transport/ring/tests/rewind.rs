//! Tests of rewinds: the offset in the ring at which a writer continues.

use super::*;

#[test]
fn writer_rewinds_only_when_everything_is_read() {
    let region = default_region();
    let ring = region.ring(0, 1);
    let (mut writer, mut reader) = (RingWriter::new(0, 1), RingReader::new(0, 1));
    let size = region.geometry().ring_bytes() as u64;
    let mut into = [0; 1000];
    let into = Dst::from(&mut into[..]);
    let body = |number: u64| [number.to_le_bytes(); 125];
    let put = |writer: &mut RingWriter, number: u64| {
        assert!(writer.write_record(&region, number, Src::from(body(number).as_flattened())));
    };
    let take = |reader: &mut RingReader, number: u64| {
        let mut head = [0; HEADER_BYTES];
        assert!(reader.peek(&ring, Dst::from(&mut head[..])).unwrap() > 0);
        assert_eq!(head[..], record_bytes(number, body(number).as_flattened())[..HEADER_BYTES]);
        assert!(reader.take_peeked(&ring, HEADER_BYTES, 0, into).unwrap());
        assert!((0..1000).step_by(WORD).all(|at| into.as_src().word(at) == number));
    };
    // One record at a time: the writer uses only a part of the ring.
    let most = usize::try_from(ring.rewind.rewind_after).unwrap() + 3 * 1032;
    assert!(most < ring.bytes.len());
    for number in 0..1000 {
        put(&mut writer, number);
        assert!(locate(ring.bytes, writer.position()).0 <= most, "{number}");
        take(&mut reader, number);
    }
    assert!(writer.position() > 10 * size && ring.reader_cursor.position() == 0);
    // With one record always in transit, the writer goes through the whole ring, and the reader
    // releases room as usual.
    put(&mut writer, 0);
    let lap = writer.position() / size;
    for number in 1..6 * size / 1032 {
        put(&mut writer, number);
        take(&mut reader, number - 1);
        reader.release(&region);
    }
    assert!((lap + 4..=lap + 7).contains(&(writer.position() / size)));
    // A full ring is also full after a rewind.
    take(&mut reader, 6 * size / 1032 - 1);
    let is_past_rewind_point = |writer: &RingWriter, reader: &RingReader| {
        locate(ring.bytes, writer.position()).0 as u64 >= ring.rewind.rewind_after
            && reader.reported == writer.position()
    };
    while !is_past_rewind_point(&writer, &reader) {
        put(&mut writer, 0);
        take(&mut reader, 0);
    }
    (0..)
        .take_while(|&number| {
            let body = body(number);
            writer.write_record(&region, number, Src::from(body.as_flattened()))
        })
        .for_each(drop);
    let held = reader.refresh(&ring).unwrap() as u64;
    assert!(held <= size && held > size - 1032, "{held}");
}

#[test]
fn short_bodies_reuse_the_start_and_long_ones_advance() {
    let region = region_with_reuse(ReusePolicy::AfterEviction);
    let ring = region.ring(0, 1);
    let (short, long) = (ring.rewind.max_short_body, 5 * ring.rewind.max_short_body);
    let (mut writer, mut reader) = (RingWriter::new(0, 1), RingReader::new(0, 1));
    let mut transfer_record = |number: u64, len: usize, reads_at_once: bool| -> usize {
        let body = vec![number.to_le_bytes()[0]; len];
        assert!(writer.write_record(&region, number, Src::from(body.as_slice())));
        let start = locate(ring.bytes, writer.position() - (HEADER_BYTES + len) as u64).0;
        if reads_at_once {
            let (mut head, mut into) = ([0; HEADER_BYTES], vec![0; len]);
            assert!(reader.peek(&ring, Dst::from(&mut head[..])).unwrap() > 0);
            let into = Dst::from(into.as_mut_slice());
            assert!(reader.take_peeked(&ring, HEADER_BYTES, 0, into).unwrap());
            assert!(
                (0..len / WORD).all(|at| into.as_src().word(at * WORD).to_le_bytes()[0] == body[0])
            );
        }
        start
    };
    let beginning = usize::try_from(ring.rewind.rewind_after).unwrap() + short + HEADER_BYTES;
    let apart = ring.rewind.long_body_offset.unwrap();
    assert!(beginning <= apart);
    let (mut laps, mut last) = (0, 0);
    for number in 0..2000 {
        assert!(
            transfer_record(2 * number, short - 8 * (number % 7) as usize, true) <= beginning,
            "{number}"
        );
        let start = transfer_record(2 * number + 1, long, true);
        assert!(start >= apart, "{number} {start}");
        // After the last long body, or in the next lap.
        assert!(start == last + HEADER_BYTES + long || start == apart || last == 0, "{number}");
        laps += u32::from(start < last);
        last = start;
    }
    assert!(laps > 5);
    // A long body follows directly while an earlier record has not been read.
    let start = transfer_record(0, short, false);
    assert!(start <= beginning);
    assert_eq!(transfer_record(0, long, false), start + HEADER_BYTES + short);
}

#[test]
fn next_record_range_is_known_for_long_bodies() {
    let region = region_with_reuse(ReusePolicy::AfterEviction);
    let ring = region.ring(0, 1);
    let mut writer = RingWriter::new(0, 1);
    let place = |writer: &RingWriter, len| {
        let next = writer.next_record_range(&ring, len);
        (next.as_mut_ptr().addr() - ring.bytes.as_mut_ptr().addr(), next.len())
    };
    let body = vec![1; 4096];
    assert!(writer.write_record(&region, 1, Src::from(body.as_slice())));
    let (start, len) = place(&writer, body.len());
    assert_eq!((start, len), (HEADER_BYTES + body.len(), HEADER_BYTES + body.len()));
    writer.prefetch_next(&region, body.len());
    assert!(writer.write_record(&region, 2, Src::from(body.as_slice())));
    assert_eq!(copy_bytes(ring.bytes.slice(start, len).as_src()), record_bytes(2, &body));
    // Short bodies go back to the beginning, and long bodies have too many lines.
    assert!([64, 16 << 10].iter().all(|&len| place(&writer, len).1 == 0));
    // The range ends at the end of the ring.
    let rest = vec![0; ring.bytes.len() - 2 * len - 100];
    assert_eq!(writer.write(&region, &[Src::from(rest.as_slice())]).unwrap(), rest.len());
    assert_eq!(place(&writer, body.len()), (ring.bytes.len() - 100, 100));
    writer.prefetch_next(&region, body.len());
    // If all bodies go back to the beginning, no range is known.
    let region = region_of_ranks(8, ReusePolicy::AfterEviction);
    let writer = RingWriter::new(0, 1);
    assert_eq!(writer.next_record_range(&region.ring(0, 1), body.len()).len(), 0);
}

#[test]
fn invalid_rewind_is_an_error_and_unpublished_is_ignored() {
    let region = default_region();
    let ring = region.ring(0, 1);
    let size = region.geometry().ring_bytes() as u64;
    let claim = |rewind: u64, position: u64| {
        ring.writer_cursor.rewind_or_drained.store(rewind, Ordering::Relaxed);
        ring.writer_cursor.corrupt_position(position);
        RingReader::new(0, 1).refresh(&ring)
    };
    assert!(claim(size + 1, size + 1).is_err());
    assert!(claim(u64::MAX, u64::MAX).is_err());
    assert_eq!(claim(size, 0).unwrap(), 0);
    assert_eq!(claim(size, size + 40).unwrap(), 40);
}

#[test]
fn ping_pong_between_threads_survives_rewinds() {
    const MESSAGES: u64 = 100_000;
    let region = default_region();
    let body = |number: u64| [number.to_le_bytes(); 60];
    let len = |number: u64| usize::try_from(number * 7 % 480).unwrap();
    let put = |writer: &mut RingWriter, number: u64| {
        let bytes = body(number);
        let bytes = Src::from(&bytes.as_flattened()[..len(number)]);
        // From time to time, write the record as a posted message is written.
        if number.is_multiple_of(13) {
            let head = record_bytes(number, &copy_bytes(bytes));
            assert_eq!(writer.write(&region, &[Src::from(&head[..])]).unwrap(), head.len());
            assert!(writer.publish(&region));
        } else {
            assert!(writer.write_record(&region, number, bytes));
        }
    };
    let take = |reader: &mut RingReader, number: u64| {
        let ring = reader.ring(&region);
        let (mut head, mut into) = ([0; HEADER_BYTES], [0; 480]);
        let into = Dst::from(&mut into[..len(number)]);
        while reader.peek(&ring, Dst::from(&mut head[..])).unwrap() == 0 {
            std::thread::yield_now();
        }
        assert_eq!(
            head,
            record_bytes(number, &body(number).as_flattened()[..len(number)])[..HEADER_BYTES]
        );
        assert!(reader.take_peeked(&ring, HEADER_BYTES, 0, into).unwrap());
        assert_eq!(copy_bytes(into.as_src()), body(number).as_flattened()[..len(number)]);
        reader.release_lazily(&region);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut writer, mut reader) = (RingWriter::new(1, 0), RingReader::new(0, 1));
            for number in 0..MESSAGES {
                take(&mut reader, number);
                put(&mut writer, number);
            }
        });
        let (mut writer, mut reader) = (RingWriter::new(0, 1), RingReader::new(1, 0));
        for number in 0..MESSAGES {
            put(&mut writer, number);
            take(&mut reader, number);
        }
        let laps = writer.position() / region.geometry().ring_bytes() as u64;
        let needed = MESSAGES * 272 / region.geometry().ring_bytes() as u64;
        assert!(laps > 2 * needed, "the ring was rewound: {laps} laps of {needed}");
    });
}
