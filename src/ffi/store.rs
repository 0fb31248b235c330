//! Functions on the keys and values of stores.

use super::args::{self, OutPtr, bytes, key as key_of, timeout};
use super::blob;
use super::handle::{HandleKind, HandleRef, HandleTable};
use super::types::*;
use crate::api::StoreHandle;
use crate::api::work::callbacks::reject_blocking_in_callback;
use crate::base::deadline::Timeout;
use crate::base::error::Result;
use crate::store::Store;
use std::ffi::{c_char, c_void};
use std::sync::Arc;

pub(super) static STORES: HandleTable<StoreHandle> = HandleTable::new(HandleKind::Store);

/// Returns the store for a call that may wait for other ranks. Such a call is refused inside a
/// completion callback.
pub(super) fn blocking_store(store: *const dist_store_t) -> Result<HandleRef<StoreHandle>> {
    reject_blocking_in_callback("a call on a store")?;
    STORES.get(store)
}

/// Creates the handle of a store and writes the handle to the caller's variable.
pub(super) fn write_store(
    out: &OutPtr<*mut dist_store_t>,
    store: Arc<dyn Store>,
    timeout: Timeout,
) -> Result<()> {
    let handle = StoreHandle::new(store).with_timeout(timeout);
    out.write(STORES.insert(Arc::new(handle))?);
    Ok(())
}

dist_export! {
    /// Creates a second handle of the same store.
    ///
    /// Each handle has its own time-out (dist_store_set_timeout). The new handle starts with the
    /// time-out of `store`. If `store` is a custom store with the function `clone`, the library
    /// calls this function, so that a wait through one handle does not block the other handle.
    ///
    /// @param store in: the store.
    /// @param out out: the handle; owned by the caller, released with dist_store_release; NULL on
    ///   failure.
    /// @agree nothing.
    /// @blocks no, except in the function `clone` of a custom store.
    /// @return DIST_OK; DIST_ERR_INVALID_ARGUMENT; DIST_ERR_INVALID_HANDLE;
    ///   DIST_ERR_NOT_INITIALIZED in a forked child; the errors of a custom store.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_store_clone(
        store: *const dist_store_t,
        out: *mut *mut dist_store_t,
    ) -> dist_status_t {
        let out = OutPtr::handle(out, "out")?;
        let copy = STORES.get(store)?.duplicate()?;
        out.write(STORES.insert(Arc::new(copy))?);
        Ok(())
    }
}

dist_export! {
    /// Stores a value under a key and replaces an earlier value.
    ///
    /// The store replaces the whole value atomically. If several values arrive concurrently, the
    /// last one stays. Hash and file stores have the value when the call returns. On other stores,
    /// the call does not wait for an answer:
    ///
    /// - Every later call of this process on the store sees the value, through any handle and any
    ///   thread.
    /// - Other processes see the value at the latest when this process has received the answer to a
    ///   later call. The cheapest call with an answer is dist_store_check without keys.
    /// - If the connection breaks before that, this later call returns DIST_ERR_CONNECTION, and its
    ///   message has the number of calls that may be lost.
    ///
    /// The same rules apply to dist_store_append, dist_store_multi_set and dist_store_queue_push.
    ///
    /// A key may contain any bytes, including zero bytes. Only custom stores get keys as C strings
    /// and refuse keys with a zero byte. On TCP and file stores, a key has at most 8191 bytes, and
    /// a value at most 8 MiB. A call takes at most 131072 keys and 256 MiB in all.
    ///
    /// @param store in: the store.
    /// @param key in: the key; borrowed for the call; NULL only if `key_len_bytes` is 0.
    /// @param key_len_bytes in: the length of the key; DIST_TERMINATED for a C string.
    /// @param value in: `len_bytes` bytes; borrowed for the call; NULL only if `len_bytes` is 0.
    /// @param len_bytes in: the length of the value.
    /// @agree nothing.
    /// @blocks While the connection to the store is congested or other processes lock the file, but
    ///   at most until the store's time-out.
    /// @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if an argument is wrong or inside a completion
    ///   callback; DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED in a forked child;
    ///   DIST_ERR_TIMEOUT; DIST_ERR_CONNECTION if the store cannot be reached; DIST_ERR_SYSTEM if
    ///   the file cannot be read or written; the error of a custom store's function.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_store_set(
        store: *mut dist_store_t,
        key: *const c_char,
        key_len_bytes: usize,
        value: *const c_void,
        len_bytes: usize,
    ) -> dist_status_t {
        let store = blocking_store(store)?;
        let key = key_of(key, key_len_bytes, "key")?;
        store.store().set(key, bytes(value, len_bytes, "value")?, &store.deadline())
    }
}

dist_export! {
    /// Returns the value of a key, and waits until the key exists.
    ///
    /// The result is one whole value that the key had at some time during the call. With the
    /// time-out DIST_NO_WAIT (dist_store_set_timeout), the call checks once.
    ///
    /// @param store in: the store.
    /// @param key in: the key; borrowed for the call; NULL only if `key_len_bytes` is 0.
    /// @param key_len_bytes in: the length of the key; DIST_TERMINATED for a C string.
    /// @param out out: a blob of one byte string; owned by the caller, released with
    ///   dist_blob_release; NULL on failure.
    /// @agree nothing.
    /// @blocks Until the key exists, but at most until the store's time-out. Other threads may use
    ///   the store during this time.
    /// @return The results of dist_store_set. The message of DIST_ERR_TIMEOUT names the key.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_store_get(
        store: *mut dist_store_t,
        key: *const c_char,
        key_len_bytes: usize,
        out: *mut *mut dist_blob_t,
    ) -> dist_status_t {
        let out = OutPtr::handle(out, "out")?;
        let store = blocking_store(store)?;
        let key = key_of(key, key_len_bytes, "key")?;
        let value = store.store().get(key, &store.wait_deadline(Timeout::Default))?;
        blob::write_blob(&out, vec![value])
    }
}

dist_export! {
    /// Adds to a counter and returns the sum.
    ///
    /// A missing counter counts as 0. Counters are stored as the decimal text of 64-bit integers,
    /// and wrap around. The call is atomic: no addition is lost. After DIST_ERR_CONNECTION or
    /// DIST_ERR_TIMEOUT, the addition may or may not have happened.
    ///
    /// @param store in: the store.
    /// @param key in: the key; borrowed for the call; NULL only if `key_len_bytes` is 0.
    /// @param key_len_bytes in: the length of the key; DIST_TERMINATED for a C string.
    /// @param amount in: the number to add.
    /// @param out out: the sum.
    /// @agree nothing.
    /// @blocks For a round trip to the store, but at most until the store's time-out.
    /// @return The results of dist_store_set, and DIST_ERR_NOT_A_NUMBER if the value is not a
    ///   number; the value then stays unchanged.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_store_add(
        store: *mut dist_store_t,
        key: *const c_char,
        key_len_bytes: usize,
        amount: i64,
        out: *mut i64,
    ) -> dist_status_t {
        let out = OutPtr::required(out, "out")?;
        let store = blocking_store(store)?;
        let key = key_of(key, key_len_bytes, "key")?;
        out.write(store.store().add(key, amount, &store.deadline())?);
        Ok(())
    }
}

dist_export! {
    /// Replaces the value of a key if the value is `expected`.
    ///
    /// If the key is missing, the call stores `desired` only if `expected` is empty. The call is
    /// atomic: if several callers expect the same value, only one of them stores its `desired`
    /// value. After DIST_ERR_CONNECTION or DIST_ERR_TIMEOUT, the value may or may not have been
    /// stored.
    ///
    /// @param store in: the store.
    /// @param key in: the key; borrowed for the call; NULL only if `key_len_bytes` is 0.
    /// @param key_len_bytes in: the length of the key; DIST_TERMINATED for a C string.
    /// @param expected in: `expected_len_bytes` bytes; borrowed for the call; NULL only if the
    ///   length is 0.
    /// @param expected_len_bytes in: the length of `expected`.
    /// @param desired in: `desired_len_bytes` bytes; borrowed for the call; NULL only if the length
    ///   is 0.
    /// @param desired_len_bytes in: the length of `desired`.
    /// @param out out: a blob with the value after the call. If the key is missing and `expected`
    ///   is not empty, the blob has `expected` (as in c10d). Owned by the caller, released with
    ///   dist_blob_release; NULL on failure.
    /// @agree nothing.
    /// @blocks For a round trip to the store, but at most until the store's time-out.
    /// @return The results of dist_store_set, and DIST_ERR_UNSUPPORTED if a custom store has no
    ///   such function.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_store_compare_set(
        store: *mut dist_store_t,
        key: *const c_char,
        key_len_bytes: usize,
        expected: *const c_void,
        expected_len_bytes: usize,
        desired: *const c_void,
        desired_len_bytes: usize,
        out: *mut *mut dist_blob_t,
    ) -> dist_status_t {
        let out = OutPtr::handle(out, "out")?;
        let store = blocking_store(store)?;
        let key = key_of(key, key_len_bytes, "key")?;
        let expected = bytes(expected, expected_len_bytes, "expected")?;
        let desired = bytes(desired, desired_len_bytes, "desired")?;
        let value = store.store().compare_set(key, expected, desired, &store.deadline())?;
        blob::write_blob(&out, vec![value])
    }
}

dist_export! {
    /// Waits until all keys exist.
    ///
    /// Each key existed at some time during the call, but not necessarily all keys at the same
    /// time. On a store that implements queues itself, a queue that is not empty counts as a key.
    /// With DIST_NO_WAIT, the call checks once.
    ///
    /// @param store in: the store.
    /// @param keys in: `n` keys; borrowed for the call; NULL only if `n` is 0.
    /// @param key_lens_bytes in, optional: `n` lengths, each as in dist_store_set; NULL for C
    ///   strings; borrowed for the call.
    /// @param n in: the number of keys.
    /// @param timeout_ms in: the default is the store's time-out.
    /// @agree nothing.
    /// @blocks Until all keys exist, but at most until `timeout_ms`. Other threads may use the
    ///   store during this time.
    /// @return The results of dist_store_set. The message of DIST_ERR_TIMEOUT names the missing
    ///   keys.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_store_wait(
        store: *mut dist_store_t,
        keys: *const *const c_char,
        key_lens_bytes: *const usize,
        n: usize,
        timeout_ms: i64,
    ) -> dist_status_t {
        let store = blocking_store(store)?;
        let keys = args::keys(keys, key_lens_bytes, n)?;
        let deadline = store.wait_deadline(timeout(timeout_ms, "timeout_ms")?);
        store.store().wait(&keys, &deadline)
    }
}

dist_export! {
    /// Reports whether all keys exist now.
    ///
    /// The call checks all keys at the same time. In a custom store, this depends on its function.
    ///
    /// @param store in: the store.
    /// @param keys in: `n` keys; borrowed for the call; NULL only if `n` is 0.
    /// @param key_lens_bytes in, optional: `n` lengths, each as in dist_store_set; NULL for C
    ///   strings; borrowed for the call.
    /// @param n in: the number of keys.
    /// @param all_present out: 1 if all keys exist, otherwise 0.
    /// @agree nothing.
    /// @blocks For a round trip to the store, but at most until the store's time-out.
    /// @return The results of dist_store_set.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_store_check(
        store: *mut dist_store_t,
        keys: *const *const c_char,
        key_lens_bytes: *const usize,
        n: usize,
        all_present: *mut i32,
    ) -> dist_status_t {
        let out = OutPtr::required(all_present, "all_present")?;
        let store = blocking_store(store)?;
        let keys = args::keys(keys, key_lens_bytes, n)?;
        out.write(i32::from(store.store().check(&keys, &store.deadline())?));
        Ok(())
    }
}

dist_export! {
    /// Returns the number of keys of the whole store, under all prefixes.
    ///
    /// The result is the number at some time during the call.
    ///
    /// @param store in: the store.
    /// @param out out: the number of keys.
    /// @agree nothing.
    /// @blocks For a round trip to the store, but at most until the store's time-out.
    /// @return The results of dist_store_set, and DIST_ERR_UNSUPPORTED if a custom store has no
    ///   such function.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_store_num_keys(store: *mut dist_store_t, out: *mut i64) -> dist_status_t {
        let out = OutPtr::required(out, "out")?;
        let store = blocking_store(store)?;
        out.write(store.store().num_keys(&store.deadline())?);
        Ok(())
    }
}

dist_export! {
    /// Returns all keys of a store, in no particular order.
    ///
    /// A prefix store returns the keys under its prefix, without the prefix. The list has the keys
    /// that existed at one time during the call. In a custom store, this depends on its function.
    ///
    /// @param store in: the store.
    /// @param out out: a blob with one byte string per key; owned by the caller, released with
    ///   dist_blob_release; NULL on failure.
    /// @agree nothing.
    /// @blocks For a round trip to the store, but at most until the store's time-out.
    /// @return The results of dist_store_set, and DIST_ERR_UNSUPPORTED if the store cannot list
    ///   keys (an older torch server, or a custom store without the function).
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_store_list_keys(store: *mut dist_store_t, out: *mut *mut dist_blob_t) -> dist_status_t {
        let out = OutPtr::handle(out, "out")?;
        let store = blocking_store(store)?;
        blob::write_blob(&out, store.store().list_keys(&store.deadline())?)
    }
}

dist_export! {
    /// Removes a key.
    ///
    /// The call is atomic: if several callers delete the same key, only one of them finds it. Calls
    /// that wait for the key continue to wait.
    ///
    /// @param store in: the store.
    /// @param key in: the key; borrowed for the call; NULL only if `key_len_bytes` is 0.
    /// @param key_len_bytes in: the length of the key; DIST_TERMINATED for a C string.
    /// @param deleted out: 1 if the key existed, otherwise 0.
    /// @agree nothing.
    /// @blocks For a round trip to the store, but at most until the store's time-out.
    /// @return The results of dist_store_set.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_store_delete_key(
        store: *mut dist_store_t,
        key: *const c_char,
        key_len_bytes: usize,
        deleted: *mut i32,
    ) -> dist_status_t {
        let out = OutPtr::required(deleted, "deleted")?;
        let store = blocking_store(store)?;
        let key = key_of(key, key_len_bytes, "key")?;
        out.write(i32::from(store.store().delete_key(key, &store.deadline())?));
        Ok(())
    }
}

dist_export! {
    /// Appends bytes to a value, or creates a missing value.
    ///
    /// The call is atomic: the bytes of one call stay together, in the order of arrival. They
    /// become visible as in dist_store_set.
    ///
    /// @param store in: the store.
    /// @param key in: the key; borrowed for the call; NULL only if `key_len_bytes` is 0.
    /// @param key_len_bytes in: the length of the key; DIST_TERMINATED for a C string.
    /// @param value in: `len_bytes` bytes; borrowed for the call; NULL only if `len_bytes` is 0.
    /// @param len_bytes in: the number of bytes.
    /// @agree nothing.
    /// @blocks As long as dist_store_set.
    /// @return The results of dist_store_set, and DIST_ERR_UNSUPPORTED if a custom store has no
    ///   such function.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_store_append(
        store: *mut dist_store_t,
        key: *const c_char,
        key_len_bytes: usize,
        value: *const c_void,
        len_bytes: usize,
    ) -> dist_status_t {
        let store = blocking_store(store)?;
        let key = key_of(key, key_len_bytes, "key")?;
        store.store().append(key, bytes(value, len_bytes, "value")?, &store.deadline())
    }
}

dist_export! {
    /// Returns the values of several keys, and waits until all keys exist.
    ///
    /// All values are from the same time during the call. In a custom store, each value is from its
    /// own time.
    ///
    /// @param store in: the store.
    /// @param keys in: `n` keys; borrowed for the call; NULL only if `n` is 0.
    /// @param key_lens_bytes in, optional: `n` lengths, each as in dist_store_set; NULL for C
    ///   strings; borrowed for the call.
    /// @param n in: the number of keys.
    /// @param out out: a blob of `n` byte strings in the order of the keys; owned by the caller,
    ///   released with dist_blob_release; NULL on failure.
    /// @agree nothing.
    /// @blocks Until all keys exist, but at most until the store's time-out. Other threads may use
    ///   the store during this time.
    /// @return The results of dist_store_set. The message of DIST_ERR_TIMEOUT names the missing
    ///   keys.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_store_multi_get(
        store: *mut dist_store_t,
        keys: *const *const c_char,
        key_lens_bytes: *const usize,
        n: usize,
        out: *mut *mut dist_blob_t,
    ) -> dist_status_t {
        let out = OutPtr::handle(out, "out")?;
        let store = blocking_store(store)?;
        let keys = args::keys(keys, key_lens_bytes, n)?;
        blob::write_blob(&out, store.store().multi_get(&keys, &store.wait_deadline(Timeout::Default))?)
    }
}

dist_export! {
    /// Stores several values in one call.
    ///
    /// Other callers see either all of the values or none. A custom store stores the values one
    /// after the other. The values become visible as in dist_store_set.
    ///
    /// @param store in: the store.
    /// @param keys in: `n` keys; borrowed for the call; NULL only if `n` is 0.
    /// @param key_lens_bytes in, optional: `n` lengths, each as in dist_store_set; NULL for C
    ///   strings; borrowed for the call.
    /// @param values in: `n` values; borrowed for the call. A value is NULL only if its length is
    ///   0. The array is NULL only if `n` is 0.
    /// @param lens_bytes in: the `n` lengths of the values; borrowed for the call; NULL only if `n`
    ///   is 0.
    /// @param n in: the number of keys and of values.
    /// @agree nothing.
    /// @blocks As long as dist_store_set.
    /// @return The results of dist_store_set.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_store_multi_set(
        store: *mut dist_store_t,
        keys: *const *const c_char,
        key_lens_bytes: *const usize,
        values: *const *const c_void,
        lens_bytes: *const usize,
        n: usize,
    ) -> dist_status_t {
        let store = blocking_store(store)?;
        let keys = args::keys(keys, key_lens_bytes, n)?;
        let values = args::slice(values, n, "values")?;
        let lens = args::slice(lens_bytes, n, "lens_bytes")?;
        let value = |(&value, &len)| bytes(value, len, "values");
        let values: Vec<&[u8]> = values.iter().zip(lens).map(value).collect::<Result<_>>()?;
        let pairs: Vec<(&[u8], &[u8])> = keys.into_iter().zip(values).collect();
        store.store().multi_set(&pairs, &store.deadline())
    }
}
