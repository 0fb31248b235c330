//! Tests of the properties that only the file store has: its format, its members, and its behaviour
//! when writers die, disks are full or the path is another kind of file.

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

/// Returns a deadline that is long enough for every call that succeeds.
fn test_deadline() -> Deadline {
    Deadline::after_ms(60_000)
}

/// A folder that is removed at the end of the test.
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

/// Opens a file without a world size.
fn open(path: &Path) -> FileStore {
    open_as(path, None, "").unwrap()
}

fn open_as(path: &Path, world_size: Option<usize>, job_id: &str) -> Result<FileStore> {
    let options = FileOptions { world_size, job_id: job_id.to_owned(), is_rendezvous: false };
    FileStore::open(path, &options, &test_deadline())
}

/// Returns the identity of a process of this host that has exited.
fn ended_process() -> ProcessIdentity {
    let mut child = Command::new("true").spawn().unwrap();
    let pid = child.id();
    child.wait().unwrap();
    // If another process has got this process id by now, it has a different start time, because no
    // process starts in the first tick after boot.
    ProcessIdentity { pid, start_ticks: Some(1), ..members::this_process() }
}

/// Returns the identity of a process whose liveness only its own host can know.
fn remote_process() -> ProcessIdentity {
    ProcessIdentity {
        pid: 1,
        start_ticks: Some(1),
        pid_namespace: "elsewhere".to_owned(),
        host: "far".to_owned(),
    }
}

/// Appends a record to a file, as another process would do.
fn append_record(path: &Path, record: &LogRecord<'_>) {
    let mut bytes = fs::read(path).unwrap();
    record.encode(&mut bytes);
    fs::write(path, bytes).unwrap();
}
