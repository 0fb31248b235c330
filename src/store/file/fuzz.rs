//! The entry point for the fuzz target `store_file`: a file of arbitrary bytes, and one of
//! arbitrary records.
//!
//! Compiled for fuzzing and for tests alone; not a part of the library.
#![allow(clippy::panic, clippy::expect_used, reason = "a panic is how a finding is told")]

use super::record::{Header, Item, Process, Record};
use super::replay::{Replay, replay};

/// Reads a file. The input's first byte says whether the rest is the file, or what its records are
/// made of: the checksums keep most changes of a file from being seen as anything but damage.
///
/// # Panics
/// Where reading does what it must never do.
pub fn file(input: &[u8]) {
    let Some((mode, rest)) = input.split_first() else { return };
    match mode % 3 {
        0 => whole(rest),
        1 => {
            let mut bytes = Vec::new();
            records(rest, &mut bytes);
            whole(&bytes);
        }
        _ => bodies(rest),
    }
}

/// Any bytes as a file: what is read of them is what was written, and reading them in pieces
/// changes nothing.
fn whole(bytes: &[u8]) {
    let (used, violation) = match replay(bytes) {
        Ok((replay, used)) => {
            check(&replay);
            (used, None)
        }
        Err((at, violation)) => (at, Some(violation)),
    };
    assert!(used <= bytes.len(), "it read {used} of {} bytes", bytes.len());
    let mut again = Vec::new();
    let mut pieces = Replay::default();
    while again.len() < used {
        let rest = &bytes[again.len()..];
        let length =
            if again.is_empty() { header(rest, &mut again) } else { record(rest, &mut again) };
        let read = pieces.read(&rest[..length]);
        assert_eq!((read.0.used, read.1), (length, None), "whole items, one by one");
    }
    assert!(again == bytes[..used], "what was read is not what was written");
    check(&pieces);
    // Whatever is cut off, what is before it counts, and it is never taken for damage.
    let cut = bytes.len() / 2;
    match replay(&bytes[..cut]) {
        Ok((_, before)) => assert!(before <= used.min(cut)),
        Err(earlier) => assert_eq!(Err(earlier), violation.map_or(Ok(()), |v| Err((used, v)))),
    }
}

fn check(replay: &Replay) {
    assert!(replay.table.is_counted(), "its size is not that of its parts");
    assert!(replay.joined() as u64 <= replay.records());
}

fn header(bytes: &[u8], again: &mut Vec<u8>) -> usize {
    let Ok(Item::Whole(header, length)) = Header::decode(bytes) else { panic!("no header") };
    header.encode(again);
    length
}

fn record(bytes: &[u8], again: &mut Vec<u8>) -> usize {
    let Ok(Item::Whole(record, length)) = Record::decode(bytes) else { panic!("no record") };
    record.encode(again);
    length
}

/// A file with right checksums around bodies of arbitrary bytes: each is its length and its bytes.
fn bodies(mut input: &[u8]) {
    let mut bytes = Vec::new();
    somebodys_header().encode(&mut bytes);
    while let Some((&length, rest)) = input.split_first() {
        let (body, others) = rest.split_at(usize::from(length).min(rest.len()));
        input = others;
        super::record::put_framed(body, &mut bytes);
    }
    whole(&bytes);
}

/// A file of records that make sense, and perhaps the beginning of one more.
fn records(input: &[u8], bytes: &mut Vec<u8>) {
    somebodys_header().encode(bytes);
    let mut steps = input.chunks_exact(4);
    for step in &mut steps {
        let (key, value) = (&step[1..2], &step[2..4]);
        let record = match step[0] % 8 {
            0 => Record::Set { key, value },
            1 => Record::MultiSet(vec![(key, value), (value, key)]),
            2 => Record::Append { key, bytes: value },
            3 => Record::Delete { key },
            4 => Record::Push { queue: key, item: value },
            5 => Record::Pop { queue: key },
            6 => Record::Join(somebody(step[1])),
            _ => Record::Leave { member: u32::from(step[1]) },
        };
        record.encode(bytes);
    }
    let torn = steps.remainder().first().map_or(0, |&torn| usize::from(torn));
    let length = bytes.len() - torn.min(bytes.len());
    bytes.truncate(length);
}

fn somebodys_header() -> Header {
    Header {
        made_at: 1_700_000_000,
        world_size: Some(2),
        job_id: "job".to_owned(),
        made_by: somebody(1),
    }
}

fn somebody(number: u8) -> Process {
    Process {
        pid: u32::from(number),
        began: Some(7),
        pid_space: "space".to_owned(),
        host: "host".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::file;
    use crate::base::fuzz::replay;

    #[test]
    fn the_files_corpus() {
        replay("store_file", file);
    }
}
