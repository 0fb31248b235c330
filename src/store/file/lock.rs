//! Taking turns at the file, between threads and between processes.
//!
//! The mutex around a [`FileLog`] is held for a look or a change, never for a wait, so that whoever
//! waits holds up nobody. The file's own lock is only ever tried: where somebody else has it, the
//! mutex is given back, and after a pause both are tried again, until the deadline.

use super::log::{FileLog, LogTail};
use crate::base::{Deadline, Error, ErrorKind, Result};
use crate::sys::file::{self, FileLock};
use crate::wait;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The first pause between two tries; each one is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_micros(30);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

/// The log, with the file locked. Dropping it gives up both.
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
        // Fails for no file that could be locked.
        drop(file::unlock(self.0.file()));
    }
}

/// The log for reading it, as it is now; the file may change again at once.
pub(super) fn read_current<'a>(
    log: &'a Mutex<FileLog>,
    deadline: &Deadline,
) -> Result<MutexGuard<'a, FileLog>> {
    retry_until(log, deadline, || try_read_current(log))
}

/// The log for changing it: everything has been read, and nobody else reads or writes.
pub(super) fn lock_exclusive<'a>(
    log: &'a Mutex<FileLog>,
    deadline: &Deadline,
) -> Result<LockedLog<'a>> {
    retry_until(log, deadline, || try_lock_exclusive(log))
}

/// The log with the file locked, whatever is in it.
pub(super) fn lock_without_reading<'a>(
    log: &'a Mutex<FileLog>,
    deadline: &Deadline,
) -> Result<LockedLog<'a>> {
    retry_until(log, deadline, || try_lock(log, FileLock::Exclusive))
}

/// [`read_current`] where that can be had at once.
pub(super) fn try_read_current(log: &Mutex<FileLog>) -> Result<Option<MutexGuard<'_, FileLog>>> {
    let Some(mut locked) = try_lock(log, FileLock::Shared)? else { return Ok(None) };
    let tail = locked.catch_up()?;
    drop(locked);
    match tail {
        LogTail::Complete => Ok(Some(lock_mutex(log))),
        // So that it need not be looked at again and again.
        LogTail::Torn => Ok(try_lock_exclusive(log)?.map(|locked| {
            drop(locked);
            lock_mutex(log)
        })),
    }
}

fn try_lock_exclusive(log: &Mutex<FileLog>) -> Result<Option<LockedLog<'_>>> {
    let Some(mut locked) = try_lock(log, FileLock::Exclusive)? else { return Ok(None) };
    locked.catch_up_and_truncate()?;
    Ok(Some(locked))
}

fn try_lock(log: &Mutex<FileLog>, lock: FileLock) -> Result<Option<LockedLog<'_>>> {
    let log = lock_mutex(log);
    match file::try_lock(log.file(), lock) {
        Ok(true) => Ok(Some(LockedLog(log))),
        Ok(false) => Ok(None),
        Err(cause) => {
            let error = log.io_error("locking (which its file system may not be able to)", &cause);
            Err(error)
        }
    }
}

/// The log as it was read last.
pub(super) fn lock_mutex(log: &Mutex<FileLog>) -> MutexGuard<'_, FileLog> {
    // Nothing that is done to it can panic half-way.
    log.lock().unwrap_or_else(PoisonError::into_inner)
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
            return Err(lock_timeout_error(&lock_mutex(log), deadline));
        }
        wait::pause(pause, deadline);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn lock_timeout_error(log: &FileLog, deadline: &Deadline) -> Error {
    let message = format!(
        "timed out after {} ms waiting for the lock of the file store {}, which another process holds; if one \
         of the job's processes has been stopped, let it go on or end it",
        deadline.elapsed().as_millis(),
        log.path().display()
    );
    Error::new(ErrorKind::Timeout, message)
}
