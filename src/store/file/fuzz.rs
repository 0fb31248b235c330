//! The fuzz target `store_file`: files of arbitrary bytes and files of arbitrary records.
//!
//! This module is compiled only for fuzzing and for tests. It is not a part of the library.
#![allow(clippy::panic, clippy::expect_used, reason = "a panic reports a finding")]

use super::record::{DecodedItem, FileHeader, LogRecord, ProcessIdentity};
use super::replay::{LogReplay, replay};

/// Reads a file that is made from `input`. The first byte selects how: the file is the rest of the
/// input, or it consists of valid records, or it consists of records with arbitrary bodies. The
/// last two kinds of files have valid checksums. Without them, the reader would reject almost every
/// file before it parses a body.
///
/// # Panics
/// If the reader violates one of its invariants.
pub fn file(input: &[u8]) {
    let Some((mode, rest)) = input.split_first() else { return };
    match mode % 3 {
        0 => check_file(rest),
        1 => {
            let mut bytes = Vec::new();
            encode_records(rest, &mut bytes);
            check_file(&bytes);
        }
        _ => check_framed_bodies(rest),
    }
}

/// Reads `bytes` as a file. Checks that the decoded items encode to the same bytes again, and that
/// item by item reading gives the same result.
fn check_file(bytes: &[u8]) {
    let (used, violation) = match replay(bytes) {
        Ok((replay, used)) => {
            check_replay(&replay);
            (used, None)
        }
        Err((at, violation)) => (at, Some(violation)),
    };
    assert!(used <= bytes.len(), "the replay consumed {used} of {} bytes", bytes.len());
    let mut reencoded = Vec::new();
    let mut pieces = LogReplay::default();
    while reencoded.len() < used {
        let rest = &bytes[reencoded.len()..];
        let length = if reencoded.is_empty() {
            reencode_header(rest, &mut reencoded)
        } else {
            reencode_record(rest, &mut reencoded)
        };
        let read = pieces.read(&rest[..length]);
        assert_eq!(
            (read.0.consumed, read.1),
            (length, None),
            "items that are decoded separately give another result"
        );
    }
    assert!(reencoded == bytes[..used], "the encoded records differ from the decoded bytes");
    check_replay(&pieces);
    // After a cut at any byte, the items before the cut remain valid, and the cut is not reported
    // as damage.
    let cut = bytes.len() / 2;
    match replay(&bytes[..cut]) {
        Ok((_, before)) => assert!(before <= used.min(cut)),
        Err(earlier) => assert_eq!(Err(earlier), violation.map_or(Ok(()), |v| Err((used, v)))),
    }
}

fn check_replay(replay: &LogReplay) {
    assert!(
        replay.table.has_consistent_size(),
        "the table's size differs from the sum of its parts"
    );
    assert!(replay.joined_count() as u64 <= replay.records());
}

fn reencode_header(bytes: &[u8], reencoded: &mut Vec<u8>) -> usize {
    let Ok(DecodedItem::Complete(header, length)) = FileHeader::decode(bytes) else {
        panic!("no header")
    };
    header.encode(reencoded);
    length
}

fn reencode_record(bytes: &[u8], reencoded: &mut Vec<u8>) -> usize {
    let Ok(DecodedItem::Complete(record, length)) = LogRecord::decode(bytes) else {
        panic!("no record")
    };
    record.encode(reencoded);
    length
}

/// Checks a file of records with arbitrary bodies and valid checksums. In the input, each body is
/// its length followed by its bytes.
fn check_framed_bodies(mut input: &[u8]) {
    let mut bytes = Vec::new();
    sample_header().encode(&mut bytes);
    while let Some((&length, rest)) = input.split_first() {
        let (body, others) = rest.split_at(usize::from(length).min(rest.len()));
        input = others;
        super::record::put_framed(body, &mut bytes);
    }
    check_file(&bytes);
}

/// Encodes a file of valid records. Depending on the input, the file ends with an incomplete
/// record.
fn encode_records(input: &[u8], bytes: &mut Vec<u8>) {
    sample_header().encode(bytes);
    let mut steps = input.chunks_exact(4);
    for step in &mut steps {
        let (key, value) = (&step[1..2], &step[2..4]);
        let record = match step[0] % 8 {
            0 => LogRecord::Set { key, value },
            1 => LogRecord::MultiSet(vec![(key, value), (value, key)]),
            2 => LogRecord::Append { key, bytes: value },
            3 => LogRecord::Delete { key },
            4 => LogRecord::Push { queue: key, item: value },
            5 => LogRecord::Pop { queue: key },
            6 => LogRecord::Join(sample_process(step[1])),
            _ => LogRecord::Leave { member: u32::from(step[1]) },
        };
        record.encode(bytes);
    }
    let torn = steps.remainder().first().map_or(0, |&torn| usize::from(torn));
    let length = bytes.len() - torn.min(bytes.len());
    bytes.truncate(length);
}

fn sample_header() -> FileHeader {
    FileHeader {
        created_at: 1_700_000_000,
        world_size: Some(2),
        job_id: "job".to_owned(),
        created_by: sample_process(1),
    }
}

fn sample_process(number: u8) -> ProcessIdentity {
    ProcessIdentity {
        pid: u32::from(number),
        start_ticks: Some(7),
        pid_namespace: "space".to_owned(),
        host: "host".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::file;
    use crate::base::fuzz::replay_corpus;

    #[test]
    fn store_file_corpus_passes() {
        replay_corpus("store_file", file);
    }
}
