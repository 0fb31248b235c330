//! A store inside one process, for jobs of one rank, for ranks that are threads, and for tests.
//! Share it through an `Arc`. Its size is bounded by the caller alone.

use super::table::Table;
use super::{Store, missing_keys, not_a_number};
use crate::base::{Deadline, Result};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const NAME: &str = "the hash store";

/// The longest single sleep; a condition variable takes no arbitrarily long one.
const SLICE: Duration = Duration::from_secs(3600);

/// A store in this process's memory.
#[derive(Debug, Default)]
pub struct HashStore {
    table: Mutex<Table>,
    changed: Condvar,
}

impl HashStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // No operation can panic half-way through a change.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the table, then wakes whoever waits.
    fn change<T>(&self, act: impl FnOnce(&mut Table) -> T) -> T {
        let outcome = act(&mut self.lock());
        self.changed.notify_all();
        outcome
    }

    /// The table, locked, once it has all keys.
    fn lock_with(&self, keys: &[&[u8]], deadline: &Deadline) -> Result<MutexGuard<'_, Table>> {
        let mut table = self.lock();
        loop {
            if keys.iter().all(|key| table.contains(key)) {
                return Ok(table);
            }
            let left = deadline.left();
            if left.is_zero() {
                let missing: Vec<_> = keys.iter().filter(|key| !table.contains(key)).collect();
                return Err(missing_keys(NAME, &missing, deadline));
            }
            let woken = self.changed.wait_timeout(table, left.min(SLICE));
            table = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Store for HashStore {
    fn set(&self, key: &[u8], value: &[u8], _: &Deadline) -> Result<()> {
        self.change(|table| table.set(key.to_vec(), value.to_vec()));
        Ok(())
    }

    fn get(&self, key: &[u8], deadline: &Deadline) -> Result<Vec<u8>> {
        let table = self.lock_with(&[key], deadline)?;
        Ok(table.get(key).unwrap_or_default().to_vec())
    }

    fn add(&self, key: &[u8], amount: i64, _: &Deadline) -> Result<i64> {
        self.change(|table| table.add(key.to_vec(), amount)).map_err(|_| not_a_number(NAME, key))
    }

    fn compare_set(
        &self,
        key: &[u8],
        expected: &[u8],
        desired: &[u8],
        _: &Deadline,
    ) -> Result<Vec<u8>> {
        Ok(self.change(|table| table.compare_set(key.to_vec(), expected, desired)).value)
    }

    fn wait(&self, keys: &[&[u8]], deadline: &Deadline) -> Result<()> {
        self.lock_with(keys, deadline).map(drop)
    }

    fn check(&self, keys: &[&[u8]], _: &Deadline) -> Result<bool> {
        let table = self.lock();
        Ok(keys.iter().all(|key| table.contains(key)))
    }

    fn num_keys(&self, _: &Deadline) -> Result<i64> {
        Ok(i64::try_from(self.lock().len()).unwrap_or(i64::MAX))
    }

    fn delete_key(&self, key: &[u8], _: &Deadline) -> Result<bool> {
        Ok(self.lock().delete(key))
    }

    fn append(&self, key: &[u8], value: &[u8], _: &Deadline) -> Result<()> {
        self.change(|table| table.append(key.to_vec(), value));
        Ok(())
    }

    fn multi_get(&self, keys: &[&[u8]], deadline: &Deadline) -> Result<Vec<Vec<u8>>> {
        let table = self.lock_with(keys, deadline)?;
        Ok(keys.iter().map(|key| table.get(key).unwrap_or_default().to_vec()).collect())
    }

    fn multi_set(&self, pairs: &[(&[u8], &[u8])], _: &Deadline) -> Result<()> {
        self.change(|table| {
            for (key, value) in pairs {
                table.set(key.to_vec(), value.to_vec());
            }
        });
        Ok(())
    }

    fn describe(&self) -> String {
        NAME.to_owned()
    }
}
