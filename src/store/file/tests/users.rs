//! Who uses a file, what an earlier run has left behind, and who removes it.

use super::{Folder, distant_process, ended_process, open, open_as, soon, write_behind};
use crate::base::ErrorKind;
use crate::store::Store as _;
use crate::store::file::record::Record;
use crate::store::file::replay::replay;
use crate::store::file::{FileOptions, FileStore};
use crate::sys::thread;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;

/// Asserts that a file cannot be joined, and why.
fn is_refused(path: &Path, world_size: Option<usize>, job_id: &str, parts: &[&str]) {
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
fn a_file_is_for_this_user_alone_and_goes_with_its_last_user() {
    let folder = Folder::new();
    let path = folder.file();
    let first = open(&path);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let second = open(&path);
    first.set(b"k", b"v", &soon()).unwrap();
    drop(first);
    assert_eq!(second.get(b"k", &soon()).unwrap(), b"v");
    // The members are no keys.
    assert_eq!(second.num_keys(&soon()).unwrap(), 1);
    assert_eq!(second.list_keys(&soon()).unwrap(), [b"k"]);
    drop(second);
    assert!(!path.exists());
    assert!(!open(&path).check(&[b"k"], &soon()).unwrap());
}

#[test]
fn a_file_of_a_known_number_stays_until_all_have_come() {
    let folder = Folder::new();
    let path = folder.file();
    let first = open_as(&path, Some(2), "j").unwrap();
    first.set(b"k", b"v", &soon()).unwrap();
    drop(first);
    let second = open_as(&path, Some(2), "j").unwrap();
    assert_eq!(second.get(b"k", &soon()).unwrap(), b"v");
    is_refused(&path, Some(2), "j", &["2 of 2", "joined already", &std::process::id().to_string()]);
    drop(second);
    assert!(!path.exists());
}

#[test]
fn an_empty_file_is_taken_as_it_is() {
    let folder = Folder::new();
    let path = folder.file();
    fs::write(&path, b"").unwrap();
    let store = open_as(&path, Some(1), "").unwrap();
    assert_eq!(store.add(b"n", 1, &soon()).unwrap(), 1);
    drop(store);
    assert!(!path.exists());
}

#[test]
fn a_file_of_another_job_names_both_and_who_made_it() {
    let folder = Folder::new();
    let path = folder.file();
    let store = open_as(&path, Some(3), "monday").unwrap();
    let me = std::process::id().to_string();
    let parts = ["job \"monday\"", "job \"tuesday\"", "made ", " ago", &me];
    is_refused(&path, Some(3), "tuesday", &parts);
    is_refused(&path, Some(4), "monday", &["of 3 processes", "of 4 processes", &me]);
    is_refused(&path, None, "monday", &["of 3 processes", "of an unknown number"]);
    drop(store);
}

#[test]
fn a_member_that_died_is_named_at_once() {
    let folder = Folder::new();
    let path = folder.file();
    let store = open_as(&path, Some(4), "").unwrap();
    let ended = ended_process();
    write_behind(&path, &Record::Join(ended.clone()));
    let parts = [&format!("process {} on host {}", ended.pid, ended.host), "without leaving"];
    is_refused(&path, Some(4), "", &[parts[0], parts[1]]);
    // Those who are there already go on, and whoever leaves last removes the file, if all have
    // come.
    store.set(b"k", b"v", &soon()).unwrap();
    write_behind(&path, &Record::Join(ended_process()));
    write_behind(&path, &Record::Join(ended_process()));
    drop(store);
    assert!(!path.exists());
}

#[test]
fn members_elsewhere_count_as_there() {
    let folder = Folder::new();
    let path = folder.file();
    let store = open_as(&path, Some(3), "").unwrap();
    write_behind(&path, &Record::Join(distant_process()));
    drop(open_as(&path, Some(3), "").unwrap());
    drop(store);
    assert!(path.exists());
    write_behind(&path, &Record::Leave { member: 1 });
    is_refused(&path, Some(3), "", &["3 of 3", "host far"]);
}

#[test]
fn a_file_for_any_number_lives_while_anybody_does() {
    let folder = Folder::new();
    let path = folder.file();
    let store = open(&path);
    write_behind(&path, &Record::Join(ended_process()));
    let other = open(&path);
    other.set(b"k", b"v", &soon()).unwrap();
    // Without those who are there, it is what an earlier run has left behind.
    let bytes = fs::read(&path).unwrap();
    drop(store);
    drop(other);
    assert!(!path.exists());
    fs::write(&path, bytes).unwrap();
    write_behind(&path, &Record::Leave { member: 0 });
    write_behind(&path, &Record::Leave { member: 2 });
    is_refused(&path, None, "", &["nobody uses it any more", "process "]);
}

#[test]
fn who_stays_together_tells_of_a_start_that_failed_and_leaves_no_file() {
    let folder = Folder::new();
    let path = folder.file();
    let together = |size| {
        let options = FileOptions { world_size: Some(size), together: true, ..Default::default() };
        FileStore::open(&path, &options, &soon())
    };
    let first = together(3).unwrap();
    let second = together(3).unwrap();
    drop(second);
    let error = together(3).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Mismatch);
    for part in [&std::process::id().to_string(), "before all 3 had come", "start it anew"] {
        assert!(error.message().contains(part), "{error}");
    }
    // The last of those who came takes the file along, so that the next start is a new one.
    drop(first);
    assert!(!path.exists());
    let all: Vec<_> = (0..3).map(|_| together(3).unwrap()).collect();
    drop(all);
    assert!(!path.exists());
}

#[test]
fn openers_and_removers_never_lose_each_other() {
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
                // What is in a file was written since its first user came, and stays while anybody
                // is there.
                let count = store.add(b"n", 1, &soon()).unwrap();
                assert!(count >= 1);
                assert!(store.add(b"n", 0, &soon()).unwrap() >= count);
                let mine = turn.to_string();
                store.set(b"k", mine.as_bytes(), &soon()).unwrap();
                store.get(b"k", &soon()).unwrap();
            }
            sender.send(()).unwrap();
        };
        drop(thread::spawn("test-open", act).unwrap());
    }
    for _ in 0..threads {
        receiver.recv_timeout(soon().left()).unwrap();
    }
    assert!(!path.exists());
}

#[test]
fn stores_of_one_file_count_without_loss() {
    let folder = Folder::new();
    let path = folder.file();
    let keeper = open(&path);
    let (sender, receiver) = mpsc::channel();
    for store in [open(&path), open(&path)].map(Arc::new) {
        for _ in 0..4 {
            let (store, sender) = (Arc::clone(&store), sender.clone());
            let act = move || {
                (0..100).for_each(|_| assert!(store.add(b"n", 1, &soon()).unwrap() > 0));
                sender.send(()).unwrap();
            };
            drop(thread::spawn("test-count", act).unwrap());
        }
    }
    for _ in 0..8 {
        receiver.recv_timeout(soon().left()).unwrap();
    }
    assert_eq!(keeper.add(b"n", 0, &soon()).unwrap(), 800);
    let bytes = fs::read(&path).unwrap();
    assert_eq!(replay(&bytes).unwrap().1, bytes.len());
}
