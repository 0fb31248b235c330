//! The file store where it differs from all others: its format, its users, and what happens to it
//! when writers die, disks are full and files are something else.

mod codec;
mod failures;
mod torn;
mod users;

use super::record::{LogRecord, ProcessIdentity};
use super::{FileOptions, FileStore, members};
use crate::base::{Deadline, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Enough for anything that succeeds.
fn test_deadline() -> Deadline {
    Deadline::after_ms(60_000)
}

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let serial = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("dist-file-store-{}-{serial}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).unwrap();
        Self(folder)
    }

    fn file(&self) -> PathBuf {
        self.0.join("store")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

/// Opens a file whose users are not counted.
fn open(path: &Path) -> FileStore {
    open_as(path, None, "").unwrap()
}

fn open_as(path: &Path, world_size: Option<usize>, job_id: &str) -> Result<FileStore> {
    let options = FileOptions { world_size, job_id: job_id.to_owned(), is_rendezvous: false };
    FileStore::open(path, &options, &test_deadline())
}

/// A process of this host that has ended.
fn ended_process() -> ProcessIdentity {
    let mut child = Command::new("true").spawn().unwrap();
    let pid = child.id();
    child.wait().unwrap();
    // No process began when the host did, so that it does not matter if the id is taken again.
    ProcessIdentity { pid, start_ticks: Some(1), ..members::this_process() }
}

/// A process of which only its own host knows whether it is there.
fn remote_process() -> ProcessIdentity {
    ProcessIdentity {
        pid: 1,
        start_ticks: Some(1),
        pid_namespace: "elsewhere".to_owned(),
        host: "far".to_owned(),
    }
}

/// Writes a record to the end of a file, as another process would.
fn append_record(path: &Path, record: &LogRecord<'_>) {
    let mut bytes = fs::read(path).unwrap();
    record.encode(&mut bytes);
    fs::write(path, bytes).unwrap();
}
