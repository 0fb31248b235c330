//! A store in a file that processes of one file system share: no server, and nothing that dies with
//! anybody.
//!
//! The file is a log of changes (`reencode_record` has its format). Each process keeps what the log
//! makes of keys and queues (`replay`) and reads only what is new (`log`); whoever changes
//! something locks the file (`lock`), reads what is new, and appends one record. So every change is
//! whole or not there, whoever is killed at whichever byte, and all processes see all changes in
//! the same order.
//!
//! Whoever waits looks at the file's size again and again, at least every [`LONGEST_PAUSE`].
//!
//! The users of a file are recorded in it (`members`, `open`): what an earlier run has left behind
//! is an error at once and never believed, and the last user removes the file.

#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod lock;
mod log;
mod members;
mod open;
pub mod record;
pub mod replay;

#[cfg(test)]
mod tests;

use super::limits::{check_count, check_key, check_total, check_value};
use super::table::{KeyValueTable, len_as_i64};
use super::{Store, missing_keys, not_a_number};
use crate::base::log::LogLevel;
use crate::base::{Deadline, Error, Result};
use crate::wait;
use log::FileLog;
use record::LogRecord;
use std::path::Path;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// The first pause of a wait; each one is half as long again as the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// The longest pause of a wait.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);
/// How long a look that must not wait may take to get the file's lock.
const LOCK_GRACE: Duration = Duration::from_secs(1);
/// How long the size of the file is believed as the system tells it. A file system on a network may
/// remember an old one until the file is locked.
const SIZE_CACHE_MAX_AGE: Duration = Duration::from_millis(500);

/// What a file is for.
#[derive(Clone, Debug, Default)]
pub struct FileOptions {
    /// How many will open it, the same for all of them; `None` (or 0) where that is not known, so
    /// that the file goes whenever nobody uses it.
    pub world_size: Option<usize>,
    /// The job, the same for all; may be empty. A file of another job is not joined.
    pub job_id: String,
    /// They stay until all have come, as in a rendezvous. So one that has left before tells those
    /// who come that the start has failed, and the file goes with the last of those who came.
    pub is_rendezvous: bool,
}

/// A store in a file.
#[derive(Debug)]
pub struct FileStore {
    log: Mutex<FileLog>,
    name: String,
    member: u32,
    is_rendezvous: bool,
}

impl FileStore {
    /// Opens a file, and makes it where there is none, readable and writable for this user alone.
    /// Dropping the store leaves the file, and the last one that does removes it.
    ///
    /// # Errors
    /// `Mismatch` where the file is something else, of another job, left by an earlier run, or
    /// where as many as it is for have joined; `Timeout` where its lock cannot be had;
    /// `InvalidArgument`, `System`.
    pub fn open(path: &Path, options: &FileOptions, deadline: &Deadline) -> Result<Self> {
        // The process may change its folder before it leaves.
        let path = std::path::absolute(path)
            .map_err(|cause| Error::invalid(format!("\"{}\": {cause}", path.display())))?;
        let (log, member) = open::open(&path, options, deadline)?;
        let name = format!("the file store {}", path.display());
        Ok(Self { log, name, member, is_rendezvous: options.is_rendezvous })
    }

    /// Looks at what is stored now.
    fn read_table<T>(
        &self,
        deadline: &Deadline,
        read: impl FnOnce(&KeyValueTable) -> T,
    ) -> Result<T> {
        Ok(read(&lock::read_current(&self.log, deadline)?.replay().table))
    }

    /// Does something while nobody else reads or writes.
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

    /// The log once it has all keys in the sense of `has`.
    fn wait_for_keys(
        &self,
        keys: &[&[u8]],
        has: fn(&KeyValueTable, &[u8]) -> bool,
        deadline: &Deadline,
    ) -> Result<MutexGuard<'_, FileLog>> {
        keys.iter().try_for_each(|key| check_key(key))?;
        let is_complete = |log: &FileLog| keys.iter().all(|key| has(&log.replay().table, key));
        // A wait that has no time left looks as well, and may meet another process's lock.
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
                        self.missing_keys_error(&lock::lock_mutex(&self.log), keys, has, deadline);
                    return Err(error.context("its lock was held by another process at last"));
                }
            }
            pause = (pause + pause / 2).min(LONGEST_PAUSE);
        }
    }

    /// The log as it is now, unless somebody else has locked the file. Reads it if its size has
    /// changed, or if the time has come to ask the file system seriously.
    fn poll_log(&self, last_read: &mut Instant) -> Result<Option<MutexGuard<'_, FileLog>>> {
        if last_read.elapsed() < SIZE_CACHE_MAX_AGE {
            let log = lock::lock_mutex(&self.log);
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
            crate::log!(LogLevel::Warn, "leaving {}: {error}", self.name);
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
            let compared = log.replay().table.compare(key, expected, desired);
            if compared.stored {
                log.append(&LogRecord::Set { key, value: desired })?;
            }
            Ok(compared.value)
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
            // Somebody else may have been faster.
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

    fn describe(&self) -> String {
        self.name.clone()
    }
}
