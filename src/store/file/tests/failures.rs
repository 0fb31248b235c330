//! Tests with files of another format, with damaged and removed files, and with a process that
//! holds the file lock for a long time.

use super::{Folder, open, open_as, test_deadline};
use crate::base::{Deadline, ErrorKind};
use crate::store::Store as _;
use crate::store::file::{FileOptions, FileStore};
use crate::store::limits::{MAX_KEY_BYTES, MAX_VALUE_BYTES};
use crate::sys::file::{self, FileLock};
use std::fs::{self, File};
use std::path::Path;

#[test]
fn foreign_files_are_refused_and_unchanged() {
    let folder = Folder::new();
    let path = folder.file();
    for text in [&b"l"[..], b"a letter\n", b"\x89PNG\r\n\x1a\n", &[0; 4096]] {
        fs::write(&path, text).unwrap();
        let error = open_as(&path, None, "").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch);
        assert!(error.message().contains("is not a libdist store file"), "{error}");
        assert!(error.message().contains(&*path.to_string_lossy()), "{error}");
        assert_eq!(fs::read(&path).unwrap(), text);
    }
    for path in [Path::new("/dev/null"), Path::new("")] {
        assert_eq!(open_as(path, None, "").unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    for path in [folder.0.as_path(), &folder.0.join("no/such/folder")] {
        let error = open_as(path, None, "").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::System);
        assert!(error.message().contains(&*path.to_string_lossy()), "{error}");
    }
}

#[test]
fn damage_is_reported_with_offset_and_not_repaired() {
    let folder = Folder::new();
    let path = folder.file();
    let store = open(&path);
    let offset = fs::metadata(&path).unwrap().len();
    store.set(b"k", b"value", &test_deadline()).unwrap();
    store.set(b"l", b"other", &test_deadline()).unwrap();
    let good = fs::read(&path).unwrap();
    let first = usize::try_from(offset).unwrap();
    for position in [first, first + 5, first + 9, first + 20] {
        let mut bad = good.clone();
        bad[position] ^= 4;
        let path = folder.0.join("bad");
        fs::write(&path, &bad).unwrap();
        let error = open_as(&path, None, "").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch);
        assert!(error.message().contains(&format!("damaged at offset {offset}")), "{error}");
        assert_eq!(fs::read(&path).unwrap(), bad);
    }
    let mut newer = good;
    newer[8] = 9;
    fs::write(folder.0.join("newer"), newer).unwrap();
    let error = open_as(&folder.0.join("newer"), None, "").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Mismatch);
    assert!(error.message().contains("version 9"), "{error}");
}

#[test]
fn removed_or_truncated_file_fails_every_call() {
    let folder = Folder::new();
    let path = folder.file();
    let store = open(&path);
    store.set(b"k", b"v", &test_deadline()).unwrap();
    fs::remove_file(&path).unwrap();
    for error in [
        store.set(b"k", b"w", &test_deadline()).unwrap_err(),
        store.get(b"k", &test_deadline()).unwrap_err(),
        store.wait(&[b"other"], &test_deadline()).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Connection);
        assert!(error.message().contains("was removed while"), "{error}");
    }
    // Another process has created a new file at this path. The drop of the first store does not
    // remove the new file.
    let other = open(&path);
    drop(store);
    assert!(path.exists());
    drop(other);

    let store = open(&path);
    store.set(b"k", b"v", &test_deadline()).unwrap();
    fs::write(&path, b"").unwrap();
    let error = store.get(b"k", &test_deadline()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Connection);
    assert!(error.message().contains("shorter"), "{error}");
}

#[test]
fn lock_held_elsewhere_times_out_at_the_deadline() {
    let folder = Folder::new();
    let path = folder.file();
    let store = open(&path);
    let other = File::options().read(true).write(true).open(&path).unwrap();
    assert!(file::try_lock(&other, FileLock::Exclusive).unwrap());
    let short = || Deadline::after_ms(50);
    for error in [
        store.set(b"k", b"v", &short()).unwrap_err(),
        store.get(b"k", &short()).unwrap_err(),
        store.num_keys(&short()).unwrap_err(),
        FileStore::open(&path, &FileOptions::default(), &short()).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Timeout);
        let text = error.message();
        assert!(text.contains(&*path.to_string_lossy()) && text.contains("lock"), "{text}");
    }
    file::unlock(&other).unwrap();
    // A shared lock does not block other readers.
    assert!(file::try_lock(&other, FileLock::Shared).unwrap());
    assert_eq!(store.num_keys(&short()).unwrap(), 0);
    let error = store.set(b"k", b"v", &short()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    drop(other);
    store.set(b"k", b"v", &test_deadline()).unwrap();
    // A wait that times out while another process holds the lock still names the missing keys.
    let other = File::options().read(true).write(true).open(&path).unwrap();
    let error = store.wait(&[b"k", b"missing"], &short()).unwrap_err();
    assert!(error.message().contains("missing: \"missing\""), "{error}");
    drop(other);
}

#[test]
fn keys_values_and_job_ids_have_limits() {
    let folder = Folder::new();
    let store = open(&folder.file());
    let (key, long_key) = (vec![b'k'; MAX_KEY_BYTES], vec![b'k'; MAX_KEY_BYTES + 1]);
    let (value, long_value) = (vec![1; MAX_VALUE_BYTES], vec![1; MAX_VALUE_BYTES + 1]);
    store.set(&key, &value, &test_deadline()).unwrap();
    assert_eq!(store.get(&key, &test_deadline()).unwrap(), value);
    store.append(&key, &value, &test_deadline()).unwrap();
    assert_eq!(store.get(&key, &test_deadline()).unwrap().len(), 2 * MAX_VALUE_BYTES);
    for error in [
        store.set(&long_key, b"", &test_deadline()).unwrap_err(),
        store.get(&long_key, &test_deadline()).unwrap_err(),
        store.set(b"k", &long_value, &test_deadline()).unwrap_err(),
        store.append(b"k", &long_value, &test_deadline()).unwrap_err(),
        store.compare_set(b"k", b"", &long_value, &test_deadline()).unwrap_err(),
        store.queue_push(b"q", &long_value, &test_deadline()).unwrap_err(),
        store.multi_set(&[(b"k", b"v"), (&long_key, b"v")], &test_deadline()).unwrap_err(),
        open_as(&folder.0.join("other"), None, &"j".repeat(5000)).unwrap_err(),
        open_as(&folder.0.join("other"), Some(1 << 40), "").unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
    assert_eq!(store.num_keys(&test_deadline()).unwrap(), 1);
}
