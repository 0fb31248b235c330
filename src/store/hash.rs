//! A store inside one process. It serves jobs of one rank, ranks that are threads of one process,
//! and tests. Callers share the store through an `Arc`. The store has no size limit.

use super::table::{KeyValueTable, len_as_i64};
use super::{Store, composed, missing_keys, not_a_number};
use crate::base::sync::lock;
use crate::base::{Deadline, Result};
use crate::wait::doorbell::Doorbell;
use crate::wait::{WaitPolicy, wait_until};
use std::sync::{Mutex, MutexGuard};

const NAME: &str = "the hash store";

/// A store in this process's memory.
#[derive(Debug, Default)]
pub struct HashStore {
    table: Mutex<KeyValueTable>,
    /// The doorbell (a futex word that waiters sleep on) that each change notifies. Calls that wait
    /// for a key sleep on this doorbell.
    changed: Doorbell,
}

impl HashStore {
    /// Creates an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Changes the table, then notifies the waiters.
    fn change<T>(&self, act: impl FnOnce(&mut KeyValueTable) -> T) -> T {
        let outcome = act(&mut lock(&self.table));
        self.changed.notify();
        outcome
    }

    /// Waits until `has` is true for all keys, then returns the locked table.
    fn lock_when_complete(
        &self,
        keys: &[&[u8]],
        has: fn(&KeyValueTable, &[u8]) -> bool,
        deadline: &Deadline,
    ) -> Result<MutexGuard<'_, KeyValueTable>> {
        let complete = || {
            let table = lock(&self.table);
            keys.iter().all(|key| has(&table, key)).then_some(table)
        };
        wait_until(&self.changed, WaitPolicy::SLEEP_SOON, deadline, || None, complete).map_err(
            |_| {
                let table = lock(&self.table);
                let missing: Vec<_> = keys.iter().filter(|key| !has(&table, key)).collect();
                missing_keys(NAME, &missing, deadline)
            },
        )
    }
}

impl Store for HashStore {
    fn set(&self, key: &[u8], value: &[u8], _: &Deadline) -> Result<()> {
        self.change(|table| table.set(key.to_vec(), value.to_vec()));
        Ok(())
    }

    fn get(&self, key: &[u8], deadline: &Deadline) -> Result<Vec<u8>> {
        let table = self.lock_when_complete(&[key], KeyValueTable::contains, deadline)?;
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
        self.lock_when_complete(keys, KeyValueTable::has_key_or_queue, deadline).map(drop)
    }

    fn check(&self, keys: &[&[u8]], _: &Deadline) -> Result<bool> {
        let table = lock(&self.table);
        Ok(keys.iter().all(|key| table.contains(key)))
    }

    fn num_keys(&self, _: &Deadline) -> Result<i64> {
        Ok(len_as_i64(lock(&self.table).len()))
    }

    fn delete_key(&self, key: &[u8], _: &Deadline) -> Result<bool> {
        Ok(lock(&self.table).delete(key))
    }

    fn append(&self, key: &[u8], value: &[u8], _: &Deadline) -> Result<()> {
        self.change(|table| table.append(key.to_vec(), value));
        Ok(())
    }

    fn multi_get(&self, keys: &[&[u8]], deadline: &Deadline) -> Result<Vec<Vec<u8>>> {
        let table = self.lock_when_complete(keys, KeyValueTable::contains, deadline)?;
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

    fn list_keys(&self, _: &Deadline) -> Result<Vec<Vec<u8>>> {
        Ok(lock(&self.table).keys().map(<[u8]>::to_vec).collect())
    }

    fn queue_push(&self, queue: &[u8], item: &[u8], _: &Deadline) -> Result<()> {
        self.change(|table| table.push(queue.to_vec(), item.to_vec()));
        Ok(())
    }

    fn queue_pop(&self, queue: &[u8], deadline: &Deadline) -> Result<Vec<u8>> {
        let has_item = |table: &KeyValueTable, queue: &[u8]| table.queue_len(queue) > 0;
        let mut table = self.lock_when_complete(&[queue], has_item, deadline)?;
        Ok(table.pop(queue).unwrap_or_default())
    }

    fn queue_try_pop(&self, queue: &[u8], _: &Deadline) -> Result<Option<Vec<u8>>> {
        Ok(lock(&self.table).pop(queue))
    }

    fn queue_len(&self, queue: &[u8], _: &Deadline) -> Result<i64> {
        Ok(len_as_i64(lock(&self.table).queue_len(queue)))
    }

    fn barrier(&self, key: &[u8], size: usize, deadline: &Deadline) -> Result<()> {
        composed::barrier(self, key, size, deadline)
    }

    fn describe(&self) -> String {
        NAME.to_owned()
    }
}
