//! A view of another store. The view adds a prefix and "/" to each key, so that several users of
//! one store do not see each other's keys.

use super::{Store, StoreWaiter, composed};
use crate::base::{Deadline, Result};
use crate::security::Secret;
use std::sync::Arc;

/// A view of another store. The key `k` of the view is the key `prefix/k` of the other store.
///
/// With nested views, the innermost prefix comes first: `PrefixStore("outer", PrefixStore("inner",
/// s))` uses `inner/outer/key`. Like in torch's `PrefixStore`, a prefix that ends in "/" gets
/// another "/".
#[derive(Debug)]
pub struct PrefixStore {
    prefix: Vec<u8>,
    inner: Arc<dyn Store>,
}

impl PrefixStore {
    /// Creates a view of `inner` under `prefix`.
    pub fn new(prefix: impl Into<Vec<u8>>, inner: Arc<dyn Store>) -> Self {
        Self { prefix: prefix.into(), inner }
    }

    /// Returns the store behind this view.
    pub fn inner(&self) -> &Arc<dyn Store> {
        &self.inner
    }

    fn prefixed_key(&self, key: &[u8]) -> Vec<u8> {
        [&self.prefix, &b"/"[..], key].concat()
    }

    fn with_prefixed_keys<T>(&self, keys: &[&[u8]], act: impl FnOnce(&[&[u8]]) -> T) -> T {
        let prefixed: Vec<_> = keys.iter().map(|key| self.prefixed_key(key)).collect();
        let borrowed: Vec<_> = prefixed.iter().map(Vec::as_slice).collect();
        act(&borrowed)
    }
}

impl Store for PrefixStore {
    fn set(&self, key: &[u8], value: &[u8], deadline: &Deadline) -> Result<()> {
        self.inner.set(&self.prefixed_key(key), value, deadline)
    }

    fn get(&self, key: &[u8], deadline: &Deadline) -> Result<Vec<u8>> {
        self.inner.get(&self.prefixed_key(key), deadline)
    }

    fn add(&self, key: &[u8], amount: i64, deadline: &Deadline) -> Result<i64> {
        self.inner.add(&self.prefixed_key(key), amount, deadline)
    }

    fn compare_set(
        &self,
        key: &[u8],
        expected: &[u8],
        desired: &[u8],
        deadline: &Deadline,
    ) -> Result<Vec<u8>> {
        self.inner.compare_set(&self.prefixed_key(key), expected, desired, deadline)
    }

    fn wait(&self, keys: &[&[u8]], deadline: &Deadline) -> Result<()> {
        self.with_prefixed_keys(keys, |keys| self.inner.wait(keys, deadline))
    }

    fn wait_slice(&self, keys: &[&[u8]], slice: &Deadline) -> Result<bool> {
        self.with_prefixed_keys(keys, |keys| self.inner.wait_slice(keys, slice))
    }

    fn waiter(&self, deadline: &Deadline) -> Result<Option<Arc<dyn StoreWaiter>>> {
        let with_prefix = |waiter| -> Arc<dyn StoreWaiter> {
            Arc::new(PrefixWaiter { inner: waiter, prefix: self.prefix.clone() })
        };
        Ok(self.inner.waiter(deadline)?.map(with_prefix))
    }

    fn second_client(&self, deadline: &Deadline) -> Result<Option<Arc<dyn Store>>> {
        let with_prefix =
            |inner| -> Arc<dyn Store> { Arc::new(Self { inner, prefix: self.prefix.clone() }) };
        Ok(self.inner.second_client(deadline)?.map(with_prefix))
    }

    fn check(&self, keys: &[&[u8]], deadline: &Deadline) -> Result<bool> {
        self.with_prefixed_keys(keys, |keys| self.inner.check(keys, deadline))
    }

    /// Returns the number of keys in the whole store, like torch's `PrefixStore`.
    fn num_keys(&self, deadline: &Deadline) -> Result<i64> {
        self.inner.num_keys(deadline)
    }

    fn delete_key(&self, key: &[u8], deadline: &Deadline) -> Result<bool> {
        self.inner.delete_key(&self.prefixed_key(key), deadline)
    }

    fn append(&self, key: &[u8], value: &[u8], deadline: &Deadline) -> Result<()> {
        self.inner.append(&self.prefixed_key(key), value, deadline)
    }

    fn multi_get(&self, keys: &[&[u8]], deadline: &Deadline) -> Result<Vec<Vec<u8>>> {
        self.with_prefixed_keys(keys, |keys| self.inner.multi_get(keys, deadline))
    }

    fn multi_set(&self, pairs: &[(&[u8], &[u8])], deadline: &Deadline) -> Result<()> {
        let prefixed: Vec<_> =
            pairs.iter().map(|(key, value)| (self.prefixed_key(key), *value)).collect();
        let borrowed: Vec<_> =
            prefixed.iter().map(|(key, value)| (key.as_slice(), *value)).collect();
        self.inner.multi_set(&borrowed, deadline)
    }

    /// Returns the keys of this view, without the prefix.
    fn list_keys(&self, deadline: &Deadline) -> Result<Vec<Vec<u8>>> {
        let prefix = self.prefixed_key(b"");
        let keys = self.inner.list_keys(deadline)?;
        Ok(keys.iter().filter_map(|key| Some(key.strip_prefix(&prefix[..])?.to_vec())).collect())
    }

    fn queue_push(&self, queue: &[u8], item: &[u8], deadline: &Deadline) -> Result<()> {
        self.inner.queue_push(&self.prefixed_key(queue), item, deadline)
    }

    fn queue_pop(&self, queue: &[u8], deadline: &Deadline) -> Result<Vec<u8>> {
        self.inner.queue_pop(&self.prefixed_key(queue), deadline)
    }

    fn queue_try_pop(&self, queue: &[u8], deadline: &Deadline) -> Result<Option<Vec<u8>>> {
        self.inner.queue_try_pop(&self.prefixed_key(queue), deadline)
    }

    fn queue_len(&self, queue: &[u8], deadline: &Deadline) -> Result<i64> {
        self.inner.queue_len(&self.prefixed_key(queue), deadline)
    }

    // The barrier is built from keys of the view, like the barrier of torch's `PrefixStore`, so
    // that libdist and torch can meet in one barrier.

    fn barrier(&self, key: &[u8], size: usize, deadline: &Deadline) -> Result<()> {
        composed::barrier(self, key, size, deadline)
    }

    fn secret(&self) -> Option<&Secret> {
        self.inner.secret()
    }

    fn is_unencrypted(&self) -> bool {
        self.inner.is_unencrypted()
    }

    fn address(&self) -> Option<(String, u16)> {
        self.inner.address()
    }

    fn calls_program(&self) -> bool {
        self.inner.calls_program()
    }

    fn describe(&self) -> String {
        format!("{} under {}", self.inner.describe(), super::format_key(&self.prefix))
    }
}

/// A waiter for keys under a prefix.
#[derive(Debug)]
struct PrefixWaiter {
    inner: Arc<dyn StoreWaiter>,
    prefix: Vec<u8>,
}

impl StoreWaiter for PrefixWaiter {
    fn wait(&self, keys: &[&[u8]], deadline: &Deadline) -> Result<()> {
        let prefixed: Vec<_> =
            keys.iter().map(|key| [&self.prefix, &b"/"[..], key].concat()).collect();
        self.inner.wait(&prefixed.iter().map(Vec::as_slice).collect::<Vec<_>>(), deadline)
    }

    fn interrupt(&self) {
        self.inner.interrupt();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::HashStore;

    #[test]
    fn innermost_prefix_comes_first() {
        let deadline = Deadline::after_ms(1000);
        let hash = Arc::new(HashStore::new());
        let inner = Arc::new(PrefixStore::new("pre", hash.clone()));
        let outer = PrefixStore::new("outer/", inner.clone());
        inner.set(b"k", b"1", &deadline).unwrap();
        outer.set(b"k", b"2", &deadline).unwrap();
        assert_eq!(hash.get(b"pre/k", &deadline).unwrap(), b"1");
        assert_eq!(hash.get(b"pre/outer//k", &deadline).unwrap(), b"2");
        assert_eq!(outer.num_keys(&deadline).unwrap(), 2);
        assert_eq!(outer.describe(), "the hash store under \"pre\" under \"outer/\"");
    }
}
