//! Tests of encoding and decoding records, and of decoding invalid bytes.

use crate::store::file::record::{
    DecodedItem, FileFormatError, FileHeader, LogRecord, MAGIC, ProcessIdentity, VERSION,
};
use crate::store::file::replay::replay;
use crate::store::limits::{MAX_KEY_BYTES, MAX_VALUE_BYTES};
use proptest::collection::vec;
use proptest::prelude::*;

/// A record that owns its bytes.
#[derive(Clone, Debug)]
enum OwnedRecord {
    Set(Vec<u8>, Vec<u8>),
    MultiSet(Vec<(Vec<u8>, Vec<u8>)>),
    Append(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    Push(Vec<u8>, Vec<u8>),
    Pop(Vec<u8>),
    Join(ProcessIdentity),
    Leave(u32),
}

impl OwnedRecord {
    fn as_record(&self) -> LogRecord<'_> {
        match self {
            Self::Set(key, value) => LogRecord::Set { key, value },
            Self::MultiSet(pairs) => LogRecord::MultiSet(
                pairs.iter().map(|(key, value)| (&key[..], &value[..])).collect(),
            ),
            Self::Append(key, bytes) => LogRecord::Append { key, bytes },
            Self::Delete(key) => LogRecord::Delete { key },
            Self::Push(queue, item) => LogRecord::Push { queue, item },
            Self::Pop(queue) => LogRecord::Pop { queue },
            Self::Join(process) => LogRecord::Join(process.clone()),
            Self::Leave(member) => LogRecord::Leave { member: *member },
        }
    }
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..40)
}

fn process() -> impl Strategy<Value = ProcessIdentity> {
    let start_ticks = proptest::option::of(1..u64::MAX);
    (any::<u32>(), start_ticks, "[a-z/0-9]{0,20}", "[a-z.]{0,20}").prop_map(
        |(pid, start_ticks, pid_space, host)| ProcessIdentity {
            pid,
            start_ticks,
            pid_namespace: pid_space,
            host,
        },
    )
}

fn record() -> impl Strategy<Value = OwnedRecord> {
    prop_oneof![
        (bytes(), bytes()).prop_map(|(key, value)| OwnedRecord::Set(key, value)),
        vec((bytes(), bytes()), 0..5).prop_map(OwnedRecord::MultiSet),
        (bytes(), bytes()).prop_map(|(key, value)| OwnedRecord::Append(key, value)),
        bytes().prop_map(OwnedRecord::Delete),
        (bytes(), bytes()).prop_map(|(queue, item)| OwnedRecord::Push(queue, item)),
        bytes().prop_map(OwnedRecord::Pop),
        process().prop_map(OwnedRecord::Join),
        any::<u32>().prop_map(OwnedRecord::Leave),
    ]
}

fn header() -> impl Strategy<Value = FileHeader> {
    let world_size = proptest::option::of(1..u32::MAX);
    (any::<u64>(), world_size, "\\PC{0,30}", process()).prop_map(
        |(made_at, world_size, job_id, made_by)| FileHeader {
            created_at: made_at,
            world_size,
            job_id,
            created_by: made_by,
        },
    )
}

fn encoded(record: &LogRecord<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    record.encode(&mut bytes);
    bytes
}

fn encoded_header() -> Vec<u8> {
    let mut bytes = Vec::new();
    let header = FileHeader {
        created_at: 5,
        world_size: Some(2),
        job_id: "a job".to_owned(),
        created_by: ProcessIdentity {
            pid: 7,
            start_ticks: None,
            pid_namespace: "x".to_owned(),
            host: "h".to_owned(),
        },
    };
    header.encode(&mut bytes);
    bytes
}

proptest! {
    #[test]
    fn records_round_trip(record in record(), behind in bytes()) {
        let mut bytes = encoded(&record.as_record());
        let length = bytes.len();
        bytes.extend(behind);
        prop_assert_eq!(LogRecord::decode(&bytes), Ok(DecodedItem::Complete(record.as_record(), length)));
        for end in 0..length {
            let partial = LogRecord::decode(&bytes[..end]);
            let is_short = matches!(partial, Ok(DecodedItem::Partial(needed)) if needed > end && needed <= length);
            prop_assert!(is_short, "{:?} of {} bytes", partial, end);
        }
    }

    #[test]
    fn headers_round_trip(header in header(), behind in bytes()) {
        let mut bytes = Vec::new();
        header.encode(&mut bytes);
        let length = bytes.len();
        bytes.extend(behind);
        prop_assert_eq!(FileHeader::decode(&bytes), Ok(DecodedItem::Complete(header, length)));
        for end in 0..length {
            let partial = FileHeader::decode(&bytes[..end]);
            let is_short = matches!(partial, Ok(DecodedItem::Partial(needed)) if needed > end && needed <= length);
            prop_assert!(is_short, "{:?} of {} bytes", partial, end);
        }
    }

    #[test]
    fn truncated_log_keeps_its_complete_records(records in vec(record(), 0..8)) {
        // A leave record for a member that does not exist is invalid.
        let records: Vec<_> = records.iter().filter(|r| !matches!(r, OwnedRecord::Leave(_))).collect();
        let mut bytes = encoded_header();
        let mut ends = vec![bytes.len()];
        for record in &records {
            record.as_record().encode(&mut bytes);
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
    fn arbitrary_bytes_are_read_without_panic(bytes in vec(any::<u8>(), 0..300)) {
        drop(replay(&bytes));
        let behind_magic = [&MAGIC[..], &bytes].concat();
        drop(replay(&behind_magic));
        let behind_header = [encoded_header(), bytes].concat();
        drop(replay(&behind_header));
    }

    #[test]
    fn valid_checksum_on_any_body_is_read_without_panic(
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
                prop_assert_eq!((at, violation), (encoded_header().len(), FileFormatError::InvalidContent));
            }
        }
    }

    #[test]
    fn every_flipped_bit_is_detected(position in any::<prop::sample::Index>(), bit in 0_u8..8) {
        let header = encoded_header();
        let mut bytes = [header.clone(), encoded(&LogRecord::Set { key: b"key", value: b"value" })].concat();
        let offset = position.index(bytes.len());
        bytes[offset] ^= 1_u8 << bit;
        match replay(&bytes) {
            Ok(_) => prop_assert!(false, "no violation was detected at {offset}"),
            Err((at, violation)) => {
                prop_assert_eq!(at, if offset < header.len() { 0 } else { header.len() });
                prop_assert_eq!(violation == FileFormatError::BadMagic, offset < 8);
                prop_assert_eq!(matches!(violation, FileFormatError::UnsupportedVersion(_)), (8..12).contains(&offset));
            }
        }
    }
}

#[test]
fn encoding_matches_the_documented_format() {
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
    assert_eq!(encoded(&LogRecord::Set { key: b"k", value: b"vw" }), expected);
}

#[test]
fn excessive_lengths_are_refused_from_the_header() {
    let huge = u32::MAX.to_le_bytes();
    let head = [&huge[..], &0_u32.to_le_bytes(), &[0; 8]].concat();
    assert_eq!(LogRecord::decode(&head), Err(FileFormatError::InvalidLength));
    let header = [&MAGIC[..], &VERSION.to_le_bytes(), &head].concat();
    assert_eq!(FileHeader::decode(&header), Err(FileFormatError::InvalidLength));
    // Zeros at the end, as in a file that was extended, are damage, not a torn record.
    assert_eq!(LogRecord::decode(&[0; 64]), Err(FileFormatError::InvalidLength));
    for (key, value) in [(MAX_KEY_BYTES + 1, 0), (0, MAX_VALUE_BYTES + 1)] {
        let (key, value) = (vec![0; key], vec![0; value]);
        let bytes = encoded(&LogRecord::Set { key: &key, value: &value });
        assert_eq!(LogRecord::decode(&bytes), Err(FileFormatError::InvalidContent));
    }
    let (key, value) = (vec![1; MAX_KEY_BYTES], vec![2; MAX_VALUE_BYTES]);
    let largest = LogRecord::Set { key: &key, value: &value };
    let bytes = encoded(&largest);
    assert_eq!(LogRecord::decode(&bytes), Ok(DecodedItem::Complete(largest, bytes.len())));
}
