//! Records to bytes and back, and what becomes of bytes that nobody wrote.

use crate::store::file::record::{Header, Item, MAGIC, Process, Record, VERSION, Violation};
use crate::store::file::replay::replay;
use crate::store::limits::{MAX_KEY_BYTES, MAX_VALUE_BYTES};
use proptest::collection::vec;
use proptest::prelude::*;

/// A record that owns its bytes.
#[derive(Clone, Debug)]
enum Owned {
    Set(Vec<u8>, Vec<u8>),
    MultiSet(Vec<(Vec<u8>, Vec<u8>)>),
    Append(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    Push(Vec<u8>, Vec<u8>),
    Pop(Vec<u8>),
    Join(Process),
    Leave(u32),
}

impl Owned {
    fn borrow(&self) -> Record<'_> {
        match self {
            Self::Set(key, value) => Record::Set { key, value },
            Self::MultiSet(pairs) => {
                Record::MultiSet(pairs.iter().map(|(key, value)| (&key[..], &value[..])).collect())
            }
            Self::Append(key, bytes) => Record::Append { key, bytes },
            Self::Delete(key) => Record::Delete { key },
            Self::Push(queue, item) => Record::Push { queue, item },
            Self::Pop(queue) => Record::Pop { queue },
            Self::Join(process) => Record::Join(process.clone()),
            Self::Leave(member) => Record::Leave { member: *member },
        }
    }
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..40)
}

fn process() -> impl Strategy<Value = Process> {
    let began = proptest::option::of(1..u64::MAX);
    (any::<u32>(), began, "[a-z/0-9]{0,20}", "[a-z.]{0,20}")
        .prop_map(|(pid, began, pid_space, host)| Process { pid, began, pid_space, host })
}

fn record() -> impl Strategy<Value = Owned> {
    prop_oneof![
        (bytes(), bytes()).prop_map(|(key, value)| Owned::Set(key, value)),
        vec((bytes(), bytes()), 0..5).prop_map(Owned::MultiSet),
        (bytes(), bytes()).prop_map(|(key, value)| Owned::Append(key, value)),
        bytes().prop_map(Owned::Delete),
        (bytes(), bytes()).prop_map(|(queue, item)| Owned::Push(queue, item)),
        bytes().prop_map(Owned::Pop),
        process().prop_map(Owned::Join),
        any::<u32>().prop_map(Owned::Leave),
    ]
}

fn header() -> impl Strategy<Value = Header> {
    let world_size = proptest::option::of(1..u32::MAX);
    (any::<u64>(), world_size, "\\PC{0,30}", process()).prop_map(
        |(made_at, world_size, job_id, made_by)| Header { made_at, world_size, job_id, made_by },
    )
}

fn encoded(record: &Record<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    record.encode(&mut bytes);
    bytes
}

fn encoded_header() -> Vec<u8> {
    let mut bytes = Vec::new();
    let header = Header {
        made_at: 5,
        world_size: Some(2),
        job_id: "a job".to_owned(),
        made_by: Process { pid: 7, began: None, pid_space: "x".to_owned(), host: "h".to_owned() },
    };
    header.encode(&mut bytes);
    bytes
}

proptest! {
    #[test]
    fn records_survive_their_bytes(record in record(), behind in bytes()) {
        let mut bytes = encoded(&record.borrow());
        let length = bytes.len();
        bytes.extend(behind);
        prop_assert_eq!(Record::decode(&bytes), Ok(Item::Whole(record.borrow(), length)));
        for end in 0..length {
            let partial = Record::decode(&bytes[..end]);
            let is_short = matches!(partial, Ok(Item::Partial(needed)) if needed > end && needed <= length);
            prop_assert!(is_short, "{:?} of {} bytes", partial, end);
        }
    }

    #[test]
    fn headers_survive_their_bytes(header in header(), behind in bytes()) {
        let mut bytes = Vec::new();
        header.encode(&mut bytes);
        let length = bytes.len();
        bytes.extend(behind);
        prop_assert_eq!(Header::decode(&bytes), Ok(Item::Whole(header, length)));
        for end in 0..length {
            let partial = Header::decode(&bytes[..end]);
            let is_short = matches!(partial, Ok(Item::Partial(needed)) if needed > end && needed <= length);
            prop_assert!(is_short, "{:?} of {} bytes", partial, end);
        }
    }

    #[test]
    fn any_truncation_gives_exactly_the_records_that_are_whole(records in vec(record(), 0..8)) {
        // A member that nobody is cannot leave.
        let records: Vec<_> = records.iter().filter(|r| !matches!(r, Owned::Leave(_))).collect();
        let mut bytes = encoded_header();
        let mut ends = vec![bytes.len()];
        for record in &records {
            record.borrow().encode(&mut bytes);
            ends.push(bytes.len());
        }
        for end in 0..=bytes.len() {
            let (replay, whole) = replay(&bytes[..end]).unwrap();
            let expected = ends.iter().rposition(|&item| item <= end);
            prop_assert_eq!(replay.header().is_some(), expected.is_some());
            prop_assert_eq!(replay.records(), expected.unwrap_or(0) as u64);
            prop_assert_eq!(whole, expected.map_or(0, |index| ends[index]));
        }
    }

    #[test]
    fn any_bytes_are_read_without_harm(bytes in vec(any::<u8>(), 0..300)) {
        drop(replay(&bytes));
        let behind_magic = [&MAGIC[..], &bytes].concat();
        drop(replay(&behind_magic));
        let behind_header = [encoded_header(), bytes].concat();
        drop(replay(&behind_header));
    }

    #[test]
    fn a_body_of_any_bytes_with_a_checksum_is_read_without_harm(
        kind in 0_u8..10,
        body in vec(prop_oneof![0_u8..4, any::<u8>()], 0..80),
    ) {
        let body = [&[kind], &body[..]].concat();
        let length = u32::try_from(body.len()).unwrap();
        let mut bytes = encoded_header();
        bytes.extend(length.to_le_bytes());
        bytes.extend((!length).to_le_bytes());
        bytes.extend(&blake3::hash(&body).as_bytes()[..8]);
        bytes.extend(&body);
        match replay(&bytes) {
            Ok((replay, whole)) => prop_assert_eq!((replay.records(), whole), (1, bytes.len())),
            Err((at, violation)) => {
                prop_assert_eq!((at, violation), (encoded_header().len(), Violation::Content));
            }
        }
    }

    #[test]
    fn every_flipped_bit_is_noticed(place in any::<prop::sample::Index>(), bit in 0_u8..8) {
        let header = encoded_header();
        let mut bytes = [header.clone(), encoded(&Record::Set { key: b"key", value: b"value" })].concat();
        let place = place.index(bytes.len());
        bytes[place] ^= 1_u8 << bit;
        match replay(&bytes) {
            Ok(_) => prop_assert!(false, "nothing was noticed at {place}"),
            Err((at, violation)) => {
                prop_assert_eq!(at, if place < header.len() { 0 } else { header.len() });
                prop_assert_eq!(violation == Violation::NotAStore, place < 8);
                prop_assert_eq!(matches!(violation, Violation::Version(_)), (8..12).contains(&place));
            }
        }
    }
}

#[test]
fn the_bytes_are_those_of_the_documentation() {
    let mut expected = MAGIC.to_vec();
    let body = [
        &5_u64.to_le_bytes()[..],
        &2_u32.to_le_bytes(),
        b"\x05\0\0\0a job",
        &7_u32.to_le_bytes(),
        &0_u64.to_le_bytes(),
        b"\x01\0\0\0x",
        b"\x01\0\0\0h",
    ]
    .concat();
    let length = u32::try_from(body.len()).unwrap();
    expected.extend([VERSION, length, !length].into_iter().flat_map(u32::to_le_bytes));
    expected.extend(&blake3::hash(&body).as_bytes()[..8]);
    expected.extend(&body);
    assert_eq!(encoded_header(), expected);

    let body = b"\x01\x01\0\0\0k\x02\0\0\0vw";
    let expected =
        [b"\x0c\0\0\0\xf3\xff\xff\xff", &blake3::hash(body).as_bytes()[..8], body].concat();
    assert_eq!(encoded(&Record::Set { key: b"k", value: b"vw" }), expected);
}

#[test]
fn lengths_beyond_the_limits_are_refused_before_there_are_so_many_bytes() {
    let huge = u32::MAX.to_le_bytes();
    let head = [&huge[..], &0_u32.to_le_bytes(), &[0; 8]].concat();
    assert_eq!(Record::decode(&head), Err(Violation::Length));
    let header = [&MAGIC[..], &VERSION.to_le_bytes(), &head].concat();
    assert_eq!(Header::decode(&header), Err(Violation::Length));
    // Zeros, as a file that was made longer has them, are no torn record.
    assert_eq!(Record::decode(&[0; 64]), Err(Violation::Length));
    for (key, value) in [(MAX_KEY_BYTES + 1, 0), (0, MAX_VALUE_BYTES + 1)] {
        let (key, value) = (vec![0; key], vec![0; value]);
        let bytes = encoded(&Record::Set { key: &key, value: &value });
        assert_eq!(Record::decode(&bytes), Err(Violation::Content));
    }
    let (key, value) = (vec![1; MAX_KEY_BYTES], vec![2; MAX_VALUE_BYTES]);
    let largest = Record::Set { key: &key, value: &value };
    let bytes = encoded(&largest);
    assert_eq!(Record::decode(&bytes), Ok(Item::Whole(largest, bytes.len())));
}
