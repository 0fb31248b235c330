//! Tests of how processes join and leave a file store, of stale files of an earlier run, and of the
//! removal of the file.

use super::{Folder, append_record, ended_process, open, open_as, remote_process, test_deadline};
use crate::base::ErrorKind;
use crate::store::Store as _;
use crate::store::file::record::LogRecord;
use crate::store::file::replay::replay;
use crate::store::file::{FileOptions, FileStore};
use crate::sys::thread;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;

/// Asserts that a process cannot join the file, and that the error text contains these parts.
fn assert_refused(path: &Path, world_size: Option<usize>, job_id: &str, parts: &[&str]) {
    let before = fs::read(path).unwrap();
    let error = open_as(path, world_size, job_id).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
    let path_shown = path.display().to_string();
    for part in parts.iter().chain([&path_shown.as_str(), &"choose another path"]) {
        assert!(error.message().contains(part), "\"{part}\" is missing: {error}");
    }
    assert_eq!(fs::read(path).unwrap(), before);
}

#[test]
fn file_is_private_and_removed_by_its_last_user() {
    let folder = Folder::new();
    let path = folder.file();
    let first = open(&path);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let second = open(&path);
    first.set(b"k", b"v", &test_deadline()).unwrap();
    drop(first);
    assert_eq!(second.get(b"k", &test_deadline()).unwrap(), b"v");
    // Members do not count as keys.
    assert_eq!(second.num_keys(&test_deadline()).unwrap(), 1);
    assert_eq!(second.list_keys(&test_deadline()).unwrap(), [b"k"]);
    drop(second);
    assert!(!path.exists());
    assert!(!open(&path).check(&[b"k"], &test_deadline()).unwrap());
}

#[test]
fn file_with_world_size_stays_until_all_have_joined() {
    let folder = Folder::new();
    let path = folder.file();
    let first = open_as(&path, Some(2), "j").unwrap();
    first.set(b"k", b"v", &test_deadline()).unwrap();
    drop(first);
    let second = open_as(&path, Some(2), "j").unwrap();
    assert_eq!(second.get(b"k", &test_deadline()).unwrap(), b"v");
    assert_refused(
        &path,
        Some(2),
        "j",
        &["2 of 2", "joined already", &std::process::id().to_string()],
    );
    drop(second);
    assert!(!path.exists());
}

#[test]
fn empty_file_is_initialized() {
    let folder = Folder::new();
    let path = folder.file();
    fs::write(&path, b"").unwrap();
    let store = open_as(&path, Some(1), "").unwrap();
    assert_eq!(store.add(b"n", 1, &test_deadline()).unwrap(), 1);
    drop(store);
    assert!(!path.exists());
}

#[test]
fn file_of_another_job_is_refused_naming_both_jobs() {
    let folder = Folder::new();
    let path = folder.file();
    let store = open_as(&path, Some(3), "monday").unwrap();
    let me = std::process::id().to_string();
    let parts = ["job \"monday\"", "job \"tuesday\"", "created ", " ago", &me];
    assert_refused(&path, Some(3), "tuesday", &parts);
    assert_refused(&path, Some(4), "monday", &["of 3 processes", "of 4 processes", &me]);
    assert_refused(&path, None, "monday", &["of 3 processes", "of an unknown number"]);
    drop(store);
}

#[test]
fn dead_member_is_named_immediately() {
    let folder = Folder::new();
    let path = folder.file();
    let store = open_as(&path, Some(4), "").unwrap();
    let ended = ended_process();
    append_record(&path, &LogRecord::Join(ended.clone()));
    let parts = [&format!("process {} on host {}", ended.pid, ended.host), "without leaving"];
    assert_refused(&path, Some(4), "", &[parts[0], parts[1]]);
    // Members that have already joined continue. The last member to leave removes the file, if all
    // have joined.
    store.set(b"k", b"v", &test_deadline()).unwrap();
    append_record(&path, &LogRecord::Join(ended_process()));
    append_record(&path, &LogRecord::Join(ended_process()));
    drop(store);
    assert!(!path.exists());
}

#[test]
fn remote_members_count_as_alive() {
    let folder = Folder::new();
    let path = folder.file();
    let store = open_as(&path, Some(3), "").unwrap();
    append_record(&path, &LogRecord::Join(remote_process()));
    drop(open_as(&path, Some(3), "").unwrap());
    drop(store);
    assert!(path.exists());
    append_record(&path, &LogRecord::Leave { member: 1 });
    assert_refused(&path, Some(3), "", &["3 of 3", "host far"]);
}

#[test]
fn file_without_world_size_lives_with_its_users() {
    let folder = Folder::new();
    let path = folder.file();
    let store = open(&path);
    append_record(&path, &LogRecord::Join(ended_process()));
    let other = open(&path);
    other.set(b"k", b"v", &test_deadline()).unwrap();
    // If no member is alive, the file is a stale file of an earlier run.
    let bytes = fs::read(&path).unwrap();
    drop(store);
    drop(other);
    assert!(!path.exists());
    fs::write(&path, bytes).unwrap();
    append_record(&path, &LogRecord::Leave { member: 0 });
    append_record(&path, &LogRecord::Leave { member: 2 });
    assert_refused(&path, None, "", &["all of its members have left or exited", "process "]);
}

#[test]
fn failed_rendezvous_is_reported_and_leaves_no_file() {
    let folder = Folder::new();
    let path = folder.file();
    let open_rendezvous = |size| {
        let options =
            FileOptions { world_size: Some(size), is_rendezvous: true, ..Default::default() };
        FileStore::open(&path, &options, &test_deadline())
    };
    let first = open_rendezvous(3).unwrap();
    let second = open_rendezvous(3).unwrap();
    drop(second);
    let error = open_rendezvous(3).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Mismatch);
    for part in
        [&std::process::id().to_string(), "before all 3 processes had joined", "restart the job"]
    {
        assert!(error.message().contains(part), "{error}");
    }
    // The last member that joined removes the file, so that the next start is independent of it.
    drop(first);
    assert!(!path.exists());
    let all: Vec<_> = (0..3).map(|_| open_rendezvous(3).unwrap()).collect();
    drop(all);
    assert!(!path.exists());
}

#[test]
fn concurrent_open_and_remove_lose_no_data() {
    let folder = Folder::new();
    let path = folder.file();
    let (sender, receiver) = mpsc::channel();
    let threads = 6;
    let turns = 60_i64;
    for _ in 0..threads {
        let (path, sender) = (path.clone(), sender.clone());
        let act = move || {
            for turn in 0..turns {
                let store = open(&path);
                // The content of the file was written after its first member joined, and the file
                // stays while any member exists.
                let count = store.add(b"n", 1, &test_deadline()).unwrap();
                assert!(count >= 1);
                assert!(store.add(b"n", 0, &test_deadline()).unwrap() >= count);
                let mine = turn.to_string();
                store.set(b"k", mine.as_bytes(), &test_deadline()).unwrap();
                store.get(b"k", &test_deadline()).unwrap();
            }
            sender.send(()).unwrap();
        };
        drop(thread::spawn("test-open", act).unwrap());
    }
    for _ in 0..threads {
        receiver.recv_timeout(test_deadline().remaining()).unwrap();
    }
    assert!(!path.exists());
}

#[test]
fn concurrent_adds_to_one_file_are_not_lost() {
    let folder = Folder::new();
    let path = folder.file();
    let open_store = open(&path);
    let (sender, receiver) = mpsc::channel();
    for store in [open(&path), open(&path)].map(Arc::new) {
        for _ in 0..4 {
            let (store, sender) = (Arc::clone(&store), sender.clone());
            let act = move || {
                (0..100).for_each(|_| assert!(store.add(b"n", 1, &test_deadline()).unwrap() > 0));
                sender.send(()).unwrap();
            };
            drop(thread::spawn("test-count", act).unwrap());
        }
    }
    for _ in 0..8 {
        receiver.recv_timeout(test_deadline().remaining()).unwrap();
    }
    assert_eq!(open_store.add(b"n", 0, &test_deadline()).unwrap(), 800);
    let bytes = fs::read(&path).unwrap();
    assert_eq!(replay(&bytes).unwrap().1, bytes.len());
}
