//! Queues and barriers of stores.

use super::args::{OutPtr, bytes, index, key as key_of, timeout};
use super::blob;
use super::store::blocking_store;
use super::types::*;
use crate::api::StoreHandle;
use crate::base::deadline::Timeout;
use crate::base::error::{Error, ErrorKind};
use crate::store::missing_keys;
use std::ffi::{c_char, c_void};

dist_export! {
    /// Appends an item to a queue.
    ///
    /// Queues and keys are separate: the same name may be a key and a queue. Only dist_store_wait
    /// and the queue functions see queues. Any number of processes may push and pop concurrently.
    /// Items keep the order of their arrival, and become visible as in dist_store_set.
    ///
    /// @param store in: the store.
    /// @param key in: the name of the queue; borrowed for the call; NULL only if `key_len_bytes` is
    ///   0.
    /// @param key_len_bytes in: the length of the name of the queue; DIST_TERMINATED for a C
    ///   string.
    /// @param value in: `len_bytes` bytes; borrowed for the call; NULL only if `len_bytes` is 0.
    /// @param len_bytes in: the length of the item.
    /// @agree nothing.
    /// @blocks As long as dist_store_set.
    /// @return The results of dist_store_set.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_store_queue_push(
        store: *mut dist_store_t,
        key: *const c_char,
        key_len_bytes: usize,
        value: *const c_void,
        len_bytes: usize,
    ) -> dist_status_t {
        let store = blocking_store(store)?;
        let key = key_of(key, key_len_bytes, "key")?;
        store.store().queue_push(key, bytes(value, len_bytes, "value")?, &store.deadline())
    }
}

dist_export! {
    /// Takes the first item of a queue.
    ///
    /// Each item goes to one caller. A TCP store serves waiting callers in the order of their
    /// calls. If a caller dies before it has the item, the next caller gets the item. After
    /// DIST_ERR_CONNECTION, the item may be lost.
    ///
    /// @param store in: the store.
    /// @param key in: the name of the queue; borrowed for the call; NULL only if `key_len_bytes` is
    ///   0.
    /// @param key_len_bytes in: the length of the name of the queue; DIST_TERMINATED for a C
    ///   string.
    /// @param block in: 0 to check once; any other number to wait for an item.
    /// @param out out: a blob of one byte string; owned by the caller, released with
    ///   dist_blob_release; NULL on failure.
    /// @agree nothing.
    /// @blocks If `block` is not 0: until there is an item, but at most until the store's time-out.
    /// @return The results of dist_store_set, and DIST_ERR_QUEUE_EMPTY if `block` is 0 and the
    ///   queue is empty. The message of DIST_ERR_TIMEOUT names the queue.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_store_queue_pop(
        store: *mut dist_store_t,
        key: *const c_char,
        key_len_bytes: usize,
        block: i32,
        out: *mut *mut dist_blob_t,
    ) -> dist_status_t {
        let out = OutPtr::handle(out, "out")?;
        let store = blocking_store(store)?;
        let queue = key_of(key, key_len_bytes, "key")?;
        let is_nonblocking = block == 0 || store.timeout() == Timeout::NoWait;
        let item = if is_nonblocking {
            let item = store.store().queue_try_pop(queue, &store.deadline())?;
            item.ok_or_else(|| empty_queue_error(&store, queue, block))?
        } else {
            store.store().queue_pop(queue, &store.wait_deadline(Timeout::Default))?
        };
        blob::write_blob(&out, vec![item])
    }
}

/// Returns the error of a queue without items. It is a timeout if the caller wanted to wait
/// (`block`) but the store's time-out is DIST_NO_WAIT.
fn empty_queue_error(store: &StoreHandle, queue: &[u8], block: i32) -> Error {
    let what = store.store().describe();
    if block != 0 {
        return missing_keys(&what, &[queue], &store.wait_deadline(Timeout::Default));
    }
    let message = format!("queue \"{}\" of {what} is empty", queue.escape_ascii());
    Error::new(ErrorKind::QueueEmpty, message)
}

dist_export! {
    /// Returns the number of items in a queue; 0 for a queue that was never used.
    ///
    /// The result is the number at some time during the call.
    ///
    /// @param store in: the store.
    /// @param key in: the name of the queue; borrowed for the call; NULL only if `key_len_bytes` is
    ///   0.
    /// @param key_len_bytes in: the length of the name of the queue; DIST_TERMINATED for a C
    ///   string.
    /// @param out out: the number of items.
    /// @agree nothing.
    /// @blocks For a round trip to the store, but at most until the store's time-out.
    /// @return The results of dist_store_set.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_store_queue_len(
        store: *mut dist_store_t,
        key: *const c_char,
        key_len_bytes: usize,
        out: *mut i64,
    ) -> dist_status_t {
        let out = OutPtr::required(out, "out")?;
        let store = blocking_store(store)?;
        let key = key_of(key, key_len_bytes, "key")?;
        out.write(store.store().queue_len(key, &store.deadline())?);
        Ok(())
    }
}

dist_export! {
    /// Waits until `world_size` callers have called the barrier.
    ///
    /// No caller returns before `world_size` calls have been made. A key serves one barrier: after
    /// it has completed, further calls with the same key return immediately. A caller that timed
    /// out still counts as a caller. All callers must use the same kind of store, because the
    /// barrier of a prefix store and the barrier of its inner store are different.
    ///
    /// @param store in: the store.
    /// @param key in: the key; borrowed for the call; NULL only if `key_len_bytes` is 0.
    /// @param key_len_bytes in: the length of the key; DIST_TERMINATED for a C string.
    /// @param world_size in: the number of callers, 0 or more; with 0 the call returns immediately.
    /// @param timeout_ms in: the default is the store's time-out. DIST_NO_WAIT is refused, also if
    ///   it is the store's time-out.
    /// @agree the key and world_size.
    /// @blocks Until all callers have called, but at most until `timeout_ms`. Other threads may use
    ///   the store during this time.
    /// @return The results of dist_store_set. The message of DIST_ERR_TIMEOUT has the number of
    ///   callers so far.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_store_barrier(
        store: *mut dist_store_t,
        key: *const c_char,
        key_len_bytes: usize,
        world_size: i32,
        timeout_ms: i64,
    ) -> dist_status_t {
        let store = blocking_store(store)?;
        let key = key_of(key, key_len_bytes, "key")?;
        let size = index(world_size, "world_size")?;
        let timeout = store.wait_timeout(timeout(timeout_ms, "timeout_ms")?);
        if timeout == Timeout::NoWait {
            let message = "timeout_ms is DIST_NO_WAIT, with which a barrier would count this \
                           caller without holding it: use dist_store_add and dist_store_check for \
                           that";
            return Err(Error::invalid(message));
        }
        let deadline = store.wait_deadline(timeout);
        store.store().barrier(key, size, &deadline)
    }
}
