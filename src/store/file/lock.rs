//! Taking turns at the file, between threads and between processes.
//!
//! The mutex around a [`Log`] is held for a look or a change, never for a wait, so that whoever
//! waits holds up nobody. The file's own lock is only ever tried: where somebody else has it, the
//! mutex is given back, and after a pause both are tried again, until the deadline.

use super::log::{Log, Tail};
use crate::base::{Deadline, Error, ErrorKind, Result};
use crate::sys::file::{self, Lock};
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
pub(super) struct Locked<'a>(MutexGuard<'a, Log>);

impl Deref for Locked<'_> {
    type Target = Log;

    fn deref(&self) -> &Log {
        &self.0
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Log {
        &mut self.0
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // Fails for no file that could be locked.
        drop(file::unlock(self.0.file()));
    }
}

/// The log for reading it, as it is now; the file may change again at once.
pub(super) fn current<'a>(log: &'a Mutex<Log>, deadline: &Deadline) -> Result<MutexGuard<'a, Log>> {
    patiently(log, deadline, || try_current(log))
}

/// The log for changing it: everything has been read, and nobody else reads or writes.
pub(super) fn exclusive<'a>(log: &'a Mutex<Log>, deadline: &Deadline) -> Result<Locked<'a>> {
    patiently(log, deadline, || try_exclusive(log))
}

/// The log with the file locked, whatever is in it.
pub(super) fn unread<'a>(log: &'a Mutex<Log>, deadline: &Deadline) -> Result<Locked<'a>> {
    patiently(log, deadline, || try_lock(log, Lock::Exclusive))
}

/// [`current`] where that can be had at once.
pub(super) fn try_current(log: &Mutex<Log>) -> Result<Option<MutexGuard<'_, Log>>> {
    let Some(mut locked) = try_lock(log, Lock::Shared)? else { return Ok(None) };
    let tail = locked.catch_up()?;
    drop(locked);
    match tail {
        Tail::Whole => Ok(Some(hold(log))),
        // So that it need not be looked at again and again.
        Tail::Torn => Ok(try_exclusive(log)?.map(|locked| {
            drop(locked);
            hold(log)
        })),
    }
}

fn try_exclusive(log: &Mutex<Log>) -> Result<Option<Locked<'_>>> {
    let Some(mut locked) = try_lock(log, Lock::Exclusive)? else { return Ok(None) };
    locked.settle()?;
    Ok(Some(locked))
}

fn try_lock(log: &Mutex<Log>, lock: Lock) -> Result<Option<Locked<'_>>> {
    let log = hold(log);
    match file::try_lock(log.file(), lock) {
        Ok(true) => Ok(Some(Locked(log))),
        Ok(false) => Ok(None),
        Err(cause) => {
            let error = log.failed("locking (which its file system may not be able to)", &cause);
            Err(error)
        }
    }
}

/// The log as it was read last.
pub(super) fn hold(log: &Mutex<Log>) -> MutexGuard<'_, Log> {
    // Nothing that is done to it can panic half-way.
    log.lock().unwrap_or_else(PoisonError::into_inner)
}

fn patiently<T>(
    log: &Mutex<Log>,
    deadline: &Deadline,
    mut attempt: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let mut pause = FIRST_PAUSE;
    loop {
        let is_last = deadline.has_passed();
        if let Some(got) = attempt()? {
            return Ok(got);
        }
        if is_last {
            return Err(never_free(&hold(log), deadline));
        }
        wait::pause(pause, deadline);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn never_free(log: &Log, deadline: &Deadline) -> Error {
    let message = format!(
        "timed out after {} ms waiting for the lock of the file store {}, which another process holds; if one \
         of the job's processes has been stopped, let it go on or end it",
        deadline.elapsed().as_millis(),
        log.path().display()
    );
    Error::new(ErrorKind::Timeout, message)
}
