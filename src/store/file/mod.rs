//! A store in a file that several processes share through a file system. The store needs no server,
//! and it survives the exit of every process.
//!
//! The file is a log of changes. One change is one record. The submodules do this work:
//!
//! * `record`: the format of the file.
//! * `replay`: computes the keys and queues from the records. Each process keeps the result in its
//!   memory.
//! * `log`: reads the records that are new since the last read, and appends records.
//! * `lock`: locks the file. To change something, a process locks the file, reads the new records,
//!   and appends one record.
//! * `members`, `open`: the processes that have joined the store. The file lists them.
//!
//! So each change is complete or absent, even if a writer is killed at any byte, and all processes
//! see all changes in the same order.
//!
//! A process that waits for a key polls the size of the file, at least once per [`LONGEST_PAUSE`].
//!
//! The list of members serves two purposes. A process that opens a stale file of an earlier run
//! gets an error immediately. The last member that leaves the store removes the file.

#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod lock;
mod log;
mod members;
mod open;
pub mod record;
pub mod replay;

pub use open::FileOptions;

#[cfg(test)]
mod tests;

use super::limits::{check_count, check_key, check_total, check_value};
use super::table::{KeyValueTable, len_as_i64};
use super::{Store, composed, missing_keys, not_a_number};
use crate::base::log::LogLevel;
use crate::base::sync;
use crate::base::{Deadline, Error, Result};
use crate::wait;
use log::FileLog;
use record::LogRecord;
use std::path::Path;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// The first pause of a wait. Each pause is 1.5 times as long as the previous one.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// The longest pause of a wait.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);
/// If the deadline of a call has already passed, the call still waits this long for the file lock,
/// so that it can read the file once.
const LOCK_GRACE: Duration = Duration::from_secs(1);
/// How long a process trusts the file size that the system reports. A network file system may cache
/// an old size until the file is locked.
const SIZE_CACHE_MAX_AGE: Duration = Duration::from_millis(500);

/// A store in a file.
#[derive(Debug)]
pub struct FileStore {
    log: Mutex<FileLog>,
    name: String,
    member: u32,
    is_rendezvous: bool,
}

impl FileStore {
    /// Opens a file store and joins it as a member. If the file is missing, creates it with access
    /// for this user only. A drop of the returned store ends the membership. The last member
    /// removes the file when its membership ends.
    ///
    /// # Errors
    /// * `Mismatch` if the path is not a file store, belongs to another job, or is a stale file of
    ///   an earlier run, or if all expected members have already joined.
    /// * `Timeout` if the file lock is not available.
    /// * `InvalidArgument` if an option or the path is invalid.
    /// * `System` if a system call fails.
    pub fn open(path: &Path, options: &FileOptions, deadline: &Deadline) -> Result<Self> {
        // The drop needs the path again, and the process may change its working directory before.
        let path = std::path::absolute(path).map_err(|cause| {
            let path = path.display();
            Error::invalid(format!("invalid path \"{path}\" of a file store: {cause}"))
                .with_source(cause)
        })?;
        let (log, member) = open::open(&path, options, deadline)?;
        let name = format!("the file store {}", path.display());
        Ok(Self { log, name, member, is_rendezvous: options.is_rendezvous })
    }

    /// Reads from the current table.
    fn read_table<T>(
        &self,
        deadline: &Deadline,
        read: impl FnOnce(&KeyValueTable) -> T,
    ) -> Result<T> {
        Ok(read(&lock::read_current(&self.log, deadline)?.replay().table))
    }

    /// Runs an operation while no other process reads or writes the file.
    fn with_exclusive_log<T>(
        &self,
        deadline: &Deadline,
        operation: impl FnOnce(&mut FileLog) -> Result<T>,
    ) -> Result<T> {
        operation(&mut *lock::lock_exclusive(&self.log, deadline)?)
    }

    fn append_record(&self, record: &LogRecord<'_>, deadline: &Deadline) -> Result<()> {
        self.with_exclusive_log(deadline, |log| log.append(record))
    }

    /// Waits until `has` is true for all keys, then returns the log.
    fn wait_for_keys(
        &self,
        keys: &[&[u8]],
        has: fn(&KeyValueTable, &[u8]) -> bool,
        deadline: &Deadline,
    ) -> Result<MutexGuard<'_, FileLog>> {
        keys.iter().try_for_each(|key| check_key(key))?;
        let is_complete = |log: &FileLog| keys.iter().all(|key| has(&log.replay().table, key));
        // Even if the deadline has passed, read the file once. This read may have to wait until
        // another process releases the file lock.
        let grace = Deadline::after(LOCK_GRACE);
        let limit = if deadline.has_passed() { &grace } else { deadline };
        let log = lock::read_current(&self.log, limit)?;
        if is_complete(&log) {
            return Ok(log);
        }
        if deadline.has_passed() {
            return Err(self.missing_keys_error(&log, keys, has, deadline));
        }
        drop(log);
        let mut last_read = Instant::now();
        let mut pause = FIRST_PAUSE;
        loop {
            wait::pause(pause, deadline);
            let is_last = deadline.has_passed();
            let log = self.poll_log(&mut last_read)?;
            match log {
                Some(log) if is_complete(&log) => return Ok(log),
                _ if !is_last => {}
                Some(log) => return Err(self.missing_keys_error(&log, keys, has, deadline)),
                None => {
                    let error =
                        self.missing_keys_error(&sync::lock(&self.log), keys, has, deadline);
                    return Err(
                        error.context("another process held the file lock at the last read")
                    );
                }
            }
            pause = (pause + pause / 2).min(LONGEST_PAUSE);
        }
    }

    /// Returns the current log, or `None` if another process has locked the file. Reads the file if
    /// its size has changed, or if the last read is older than [`SIZE_CACHE_MAX_AGE`].
    fn poll_log(&self, last_read: &mut Instant) -> Result<Option<MutexGuard<'_, FileLog>>> {
        if last_read.elapsed() < SIZE_CACHE_MAX_AGE {
            let log = sync::lock(&self.log);
            if !log.has_unread_bytes()? {
                return Ok(Some(log));
            }
        }
        let log = lock::try_read_current(&self.log)?;
        if log.is_some() {
            *last_read = Instant::now();
        }
        Ok(log)
    }

    fn missing_keys_error(
        &self,
        log: &FileLog,
        keys: &[&[u8]],
        has: fn(&KeyValueTable, &[u8]) -> bool,
        deadline: &Deadline,
    ) -> Error {
        let table = &log.replay().table;
        let missing: Vec<_> = keys.iter().filter(|key| !has(table, key)).collect();
        missing_keys(&self.name, &missing, deadline)
    }
}

impl Drop for FileStore {
    fn drop(&mut self) {
        if let Err(error) = open::leave(&self.log, self.member, self.is_rendezvous) {
            crate::log!(LogLevel::Warn, "cannot leave {}: {error}", self.name);
        }
    }
}

impl Store for FileStore {
    fn set(&self, key: &[u8], value: &[u8], deadline: &Deadline) -> Result<()> {
        check_key(key)?;
        check_value(value)?;
        self.append_record(&LogRecord::Set { key, value }, deadline)
    }

    fn get(&self, key: &[u8], deadline: &Deadline) -> Result<Vec<u8>> {
        let log = self.wait_for_keys(&[key], KeyValueTable::contains, deadline)?;
        Ok(log.replay().get(key).unwrap_or_default().to_vec())
    }

    fn add(&self, key: &[u8], amount: i64, deadline: &Deadline) -> Result<i64> {
        check_key(key)?;
        self.with_exclusive_log(deadline, |log| {
            let sum = log.replay().table.sum(key, amount);
            let sum = sum.map_err(|_| not_a_number(&self.name, key))?;
            log.append(&LogRecord::Set { key, value: sum.to_string().as_bytes() })?;
            Ok(sum)
        })
    }

    fn compare_set(
        &self,
        key: &[u8],
        expected: &[u8],
        desired: &[u8],
        deadline: &Deadline,
    ) -> Result<Vec<u8>> {
        check_key(key)?;
        check_value(expected)?;
        check_value(desired)?;
        self.with_exclusive_log(deadline, |log| {
            let outcome = log.replay().table.compare(key, expected, desired);
            if outcome.stored {
                log.append(&LogRecord::Set { key, value: desired })?;
            }
            Ok(outcome.value)
        })
    }

    fn wait(&self, keys: &[&[u8]], deadline: &Deadline) -> Result<()> {
        self.wait_for_keys(keys, KeyValueTable::has_key_or_queue, deadline).map(drop)
    }

    fn check(&self, keys: &[&[u8]], deadline: &Deadline) -> Result<bool> {
        keys.iter().try_for_each(|key| check_key(key))?;
        self.read_table(deadline, |table| keys.iter().all(|key| table.contains(key)))
    }

    fn num_keys(&self, deadline: &Deadline) -> Result<i64> {
        self.read_table(deadline, |table| len_as_i64(table.len()))
    }

    fn delete_key(&self, key: &[u8], deadline: &Deadline) -> Result<bool> {
        check_key(key)?;
        self.with_exclusive_log(deadline, |log| {
            let exists = log.replay().table.contains(key);
            if exists {
                log.append(&LogRecord::Delete { key })?;
            }
            Ok(exists)
        })
    }

    fn append(&self, key: &[u8], value: &[u8], deadline: &Deadline) -> Result<()> {
        check_key(key)?;
        check_value(value)?;
        self.append_record(&LogRecord::Append { key, bytes: value }, deadline)
    }

    fn multi_get(&self, keys: &[&[u8]], deadline: &Deadline) -> Result<Vec<Vec<u8>>> {
        let log = self.wait_for_keys(keys, KeyValueTable::contains, deadline)?;
        let value = |key: &&[u8]| log.replay().get(key).unwrap_or_default().to_vec();
        Ok(keys.iter().map(value).collect())
    }

    fn multi_set(&self, pairs: &[(&[u8], &[u8])], deadline: &Deadline) -> Result<()> {
        check_count(pairs.len())?;
        for (key, value) in pairs {
            check_key(key)?;
            check_value(value)?;
        }
        check_total(pairs.iter().map(|(key, value)| key.len() + value.len()).sum())?;
        self.append_record(&LogRecord::MultiSet(pairs.to_vec()), deadline)
    }

    fn list_keys(&self, deadline: &Deadline) -> Result<Vec<Vec<u8>>> {
        self.read_table(deadline, |table| table.keys().map(<[u8]>::to_vec).collect())
    }

    fn queue_push(&self, queue: &[u8], item: &[u8], deadline: &Deadline) -> Result<()> {
        check_key(queue)?;
        check_value(item)?;
        self.append_record(&LogRecord::Push { queue, item }, deadline)
    }

    fn queue_pop(&self, queue: &[u8], deadline: &Deadline) -> Result<Vec<u8>> {
        let has_item = |table: &KeyValueTable, queue: &[u8]| table.queue_len(queue) > 0;
        loop {
            drop(self.wait_for_keys(&[queue], has_item, deadline)?);
            // Another caller may have taken the item.
            if let Some(item) = self.queue_try_pop(queue, deadline)? {
                return Ok(item);
            }
        }
    }

    fn queue_try_pop(&self, queue: &[u8], deadline: &Deadline) -> Result<Option<Vec<u8>>> {
        check_key(queue)?;
        self.with_exclusive_log(deadline, |log| {
            let item = log.replay().table.peek(queue).map(<[u8]>::to_vec);
            if item.is_some() {
                log.append(&LogRecord::Pop { queue })?;
            }
            Ok(item)
        })
    }

    fn queue_len(&self, queue: &[u8], deadline: &Deadline) -> Result<i64> {
        check_key(queue)?;
        self.read_table(deadline, |table| len_as_i64(table.queue_len(queue)))
    }

    fn barrier(&self, key: &[u8], size: usize, deadline: &Deadline) -> Result<()> {
        composed::barrier(self, key, size, deadline)
    }

    fn describe(&self) -> String {
        self.name.clone()
    }
}
