//! Tests with a writer that dies during a write, after any number of bytes.

use super::{Folder, open, test_deadline};
use crate::store::Store as _;
use crate::store::file::record::LogRecord;
use crate::store::file::replay::replay;
use std::fs;

/// Returns the bytes of a file with all kinds of records, and the end offset of each record. The
/// process that the file names as its member is alive.
fn log_with_every_record_kind(folder: &Folder) -> (Vec<u8>, Vec<usize>) {
    let path = folder.file();
    let store = open(&path);
    let mut ends = vec![fs::read(&path).unwrap().len()];
    let mut record_end = || ends.push(usize::try_from(fs::metadata(&path).unwrap().len()).unwrap());
    store.set(b"key", b"value", &test_deadline()).unwrap();
    record_end();
    store.multi_set(&[(b"a", b"1"), (b"b", b"")], &test_deadline()).unwrap();
    record_end();
    store.append(b"key", b" and more", &test_deadline()).unwrap();
    record_end();
    store.add(b"count", 41, &test_deadline()).unwrap();
    record_end();
    store.queue_push(b"queue", b"first", &test_deadline()).unwrap();
    record_end();
    store.queue_push(b"queue", b"second", &test_deadline()).unwrap();
    record_end();
    store.queue_try_pop(b"queue", &test_deadline()).unwrap();
    record_end();
    store.delete_key(b"a", &test_deadline()).unwrap();
    record_end();
    store.add(b"count", 1, &test_deadline()).unwrap();
    record_end();
    let bytes = fs::read(&path).unwrap();
    drop(store);
    (bytes, ends)
}

#[test]
fn file_cut_at_any_byte_keeps_its_complete_records() {
    let folder = Folder::new();
    let (bytes, ends) = log_with_every_record_kind(&folder);
    assert_eq!(replay(&bytes).unwrap().1, bytes.len());
    for cut in 0..=bytes.len() {
        let path = folder.0.join(format!("cut-{cut}"));
        fs::write(&path, &bytes[..cut]).unwrap();
        let (before, _) = replay(&bytes[..cut]).unwrap();
        let store = open(&path);
        let reached = ends.iter().filter(|&&end| end <= cut).count();
        let has = |key: &[u8]| store.check(&[key], &test_deadline()).unwrap();
        assert_eq!(has(b"key"), reached > 1, "cut at {cut}");
        assert_eq!(has(b"b"), reached > 2, "cut at {cut}");
        assert_eq!(has(b"a"), (3..9).contains(&reached), "cut at {cut}");
        if reached > 1 {
            let expected: &[u8] = if reached > 3 { b"value and more" } else { b"value" };
            assert_eq!(store.get(b"key", &test_deadline()).unwrap(), expected);
        }
        let count = [0, 0, 0, 0, 0, 41, 41, 41, 41, 41, 42][reached];
        assert_eq!(store.add(b"count", 0, &test_deadline()).unwrap(), count, "cut at {cut}");
        let queued = [0, 0, 0, 0, 0, 0, 1, 2, 1, 1, 1][reached];
        assert_eq!(store.queue_len(b"queue", &test_deadline()).unwrap(), queued, "cut at {cut}");
        // After the complete records, the file has one join and one addition, and no byte of the
        // torn record.
        let now = fs::read(&path).unwrap();
        let (after, length) = replay(&now).unwrap();
        assert_eq!(length, now.len());
        assert_eq!(after.records(), before.records() + 2, "cut at {cut}");
        drop(store);
        drop(fs::remove_file(&path));
    }
}

#[test]
fn torn_record_is_ignored_by_readers_and_truncated() {
    let folder = Folder::new();
    let path = folder.file();
    let reader = open(&path);
    let waiter = open(&path);
    reader.set(b"k", b"whole", &test_deadline()).unwrap();
    let whole = fs::read(&path).unwrap();
    let mut torn = whole.clone();
    LogRecord::Set { key: b"k", value: &[7; 100_000] }.encode(&mut torn);
    for length in [whole.len() + 1, whole.len() + 20, whole.len() + 70_000, torn.len() - 1] {
        fs::write(&path, &torn[..length]).unwrap();
        assert_eq!(waiter.get(b"k", &test_deadline()).unwrap(), b"whole");
        assert_eq!(fs::read(&path).unwrap(), whole);
        assert_eq!(reader.get(b"k", &test_deadline()).unwrap(), b"whole");
    }
    // The writer was only slow: the record becomes complete.
    fs::write(&path, &torn).unwrap();
    assert_eq!(waiter.get(b"k", &test_deadline()).unwrap(), [7; 100_000]);
    assert_eq!(reader.add(b"n", 1, &test_deadline()).unwrap(), 1);
    assert_eq!(waiter.add(b"n", 1, &test_deadline()).unwrap(), 2);
}
