//! Locks the file store's log between threads (by a mutex) and between processes (by the file
//! lock).
//!
//! A thread holds the mutex around a [`FileLog`] only for one read or one change, never while it
//! waits, so that a waiting thread does not block other threads. A thread takes the file lock with
//! a non-blocking call. If another process holds the file lock, the thread releases the mutex,
//! pauses, and tries to take both again until the deadline.

use super::log::{FileLog, LogTail};
use crate::base::sync::lock;
use crate::base::{Deadline, Error, ErrorKind, Result};
use crate::sys::file::{self, FileLock};
use crate::wait;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// The first pause between two attempts to lock. Each pause is twice as long as the previous one.
const FIRST_PAUSE: Duration = Duration::from_micros(30);
/// The longest pause between two attempts to lock.
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

/// The log, with the file locked. Dropping it releases the file lock and the mutex.
#[derive(Debug)]
pub(super) struct LockedLog<'a>(MutexGuard<'a, FileLog>);

impl Deref for LockedLog<'_> {
    type Target = FileLog;

    fn deref(&self) -> &FileLog {
        &self.0
    }
}

impl DerefMut for LockedLog<'_> {
    fn deref_mut(&mut self) -> &mut FileLog {
        &mut self.0
    }
}

impl Drop for LockedLog<'_> {
    fn drop(&mut self) {
        // The unlock call cannot fail on a file that this process has locked.
        drop(file::unlock(self.0.file()));
    }
}

/// Reads the new records under the file lock, releases the file lock, and returns the log for
/// reading. Another process may change the file as soon as the file lock is released.
pub(super) fn read_current<'a>(
    log: &'a Mutex<FileLog>,
    deadline: &Deadline,
) -> Result<MutexGuard<'a, FileLog>> {
    retry_until(log, deadline, || try_read_current(log))
}

/// Locks the file, reads the new records, and returns the log for a change. While the caller holds
/// the result, no other process reads or writes the file.
pub(super) fn lock_exclusive<'a>(
    log: &'a Mutex<FileLog>,
    deadline: &Deadline,
) -> Result<LockedLog<'a>> {
    retry_until(log, deadline, || try_lock_exclusive(log))
}

/// Returns the log with the file locked, without reading new records.
pub(super) fn lock_without_reading<'a>(
    log: &'a Mutex<FileLog>,
    deadline: &Deadline,
) -> Result<LockedLog<'a>> {
    retry_until(log, deadline, || try_lock(log, FileLock::Exclusive))
}

/// Makes one attempt of [`read_current`]. Returns `None` if another process holds the file lock.
pub(super) fn try_read_current(log: &Mutex<FileLog>) -> Result<Option<MutexGuard<'_, FileLog>>> {
    let Some(mut locked) = try_lock(log, FileLock::Shared)? else { return Ok(None) };
    let tail = locked.catch_up()?;
    drop(locked);
    match tail {
        LogTail::Complete => Ok(Some(lock(log))),
        // Truncate the torn record, so that later reads do not find it again.
        LogTail::Torn => Ok(try_lock_exclusive(log)?.map(|locked| {
            drop(locked);
            lock(log)
        })),
    }
}

fn try_lock_exclusive(log: &Mutex<FileLog>) -> Result<Option<LockedLog<'_>>> {
    let Some(mut locked) = try_lock(log, FileLock::Exclusive)? else { return Ok(None) };
    locked.catch_up_and_truncate()?;
    Ok(Some(locked))
}

fn try_lock(log: &Mutex<FileLog>, kind: FileLock) -> Result<Option<LockedLog<'_>>> {
    let log = lock(log);
    match file::try_lock(log.file(), kind) {
        Ok(true) => Ok(Some(LockedLog(log))),
        Ok(false) => Ok(None),
        Err(cause) => {
            let message = format!(
                "cannot lock the file store {}: {cause}; its file system may not support locks",
                log.path().display()
            );
            Err(Error::new(ErrorKind::System, message).with_source(cause))
        }
    }
}

fn retry_until<T>(
    log: &Mutex<FileLog>,
    deadline: &Deadline,
    mut attempt: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let mut pause = FIRST_PAUSE;
    loop {
        let is_last = deadline.has_passed();
        if let Some(acquired) = attempt()? {
            return Ok(acquired);
        }
        if is_last {
            return Err(lock_timeout_error(&lock(log), deadline));
        }
        wait::pause(pause, deadline);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn lock_timeout_error(log: &FileLog, deadline: &Deadline) -> Error {
    let message = format!(
        "timed out after {} ms waiting for the lock of the file store {}, which another process holds; if a \
         process of the job is stopped, continue or end it",
        deadline.elapsed().as_millis(),
        log.path().display()
    );
    Error::new(ErrorKind::Timeout, message)
}
