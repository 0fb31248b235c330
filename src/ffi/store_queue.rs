//! Queues and barriers of stores.

use super::args::{Out, bytes, index, milliseconds, required_key};
use super::blob;
use super::store::waiting;
use super::types::*;
use crate::base::error::{Error, ErrorKind};
use std::ffi::{c_char, c_void};

dist_export! {
    /// Adds an item to the end of a queue. Queues are beside the keys: one name may be both, and only
    /// dist_store_wait and the queue functions see queues.
    ///
    /// `store`: required. `key`: the queue's name, required, a terminated string. `value`: `len_bytes` bytes,
    /// NULL only if 0. All borrowed for the call. Blocks as dist_store_set. Any thread.
    ///
    /// Concurrency: any number of processes may push and pop at once; items keep the order in which they
    /// arrive. When others see it is as with dist_store_set.
    ///
    /// Returns as dist_store_set. Since 0.1.
    pub fn dist_store_queue_push(
        store: *mut dist_store_t,
        key: *const c_char,
        value: *const c_void,
        len_bytes: usize,
    ) -> dist_status_t {
        let store = waiting(store)?;
        let key = required_key(key, "key")?;
        store.store().queue_push(key, bytes(value, len_bytes, "value")?, &store.deadline())
    }
}

dist_export! {
    /// Takes the first item of a queue.
    ///
    /// `store`, `key`: required, borrowed for the call. `block`: not 0 waits until there is an item, until the
    /// store's time-out at the latest. `out`: out, required; a blob of one byte string, owned by the caller. Any
    /// thread; others may use the store meanwhile.
    ///
    /// Concurrency: each item is given to one caller; a TCP store serves waiting callers in the order in which
    /// they came. A caller that dies before it has the item leaves it to the next; after DIST_ERR_CONNECTION it may
    /// be lost.
    ///
    /// Returns as dist_store_set; DIST_ERR_QUEUE_EMPTY where `block` is 0 and there is no item;
    /// DIST_ERR_TIMEOUT names the queue. Since 0.1.
    pub fn dist_store_queue_pop(
        store: *mut dist_store_t,
        key: *const c_char,
        block: i32,
        out: *mut *mut dist_blob_t,
    ) -> dist_status_t {
        let out = Out::handle(out, "out")?;
        let store = waiting(store)?;
        let queue = required_key(key, "key")?;
        let deadline = store.deadline();
        let item = if block == 0 {
            store.store().queue_try_pop(queue, &deadline)?.ok_or_else(|| {
                let name = queue.escape_ascii();
                let what = store.store().describe();
                Error::new(ErrorKind::QueueEmpty, format!("queue \"{name}\" of {what} is empty"))
            })?
        } else {
            store.store().queue_pop(queue, &deadline)?
        };
        blob::give(&out, vec![item])
    }
}

dist_export! {
    /// The number of items in a queue; 0 for one that was never used.
    ///
    /// Concurrency: the number at some time during the call.
    ///
    /// `store`, `key`: required, borrowed for the call. `out`: out, required. Blocks for a round trip. Any
    /// thread.
    ///
    /// Returns as dist_store_set. Since 0.1.
    pub fn dist_store_queue_len(
        store: *mut dist_store_t,
        key: *const c_char,
        out: *mut i64,
    ) -> dist_status_t {
        let out = Out::required(out, "out")?;
        let store = waiting(store)?;
        out.write(store.store().queue_len(required_key(key, "key")?, &store.deadline())?);
        Ok(())
    }
}

dist_export! {
    /// Waits until `world_size` callers have come to a barrier.
    ///
    /// `store`, `key`: required, borrowed for the call. `world_size`: how many; all name the same number; 0
    /// returns at once. `timeout_ms`: 0 for the store's time-out, or DIST_WAIT_FOREVER. Any thread; others may use
    /// the store meanwhile.
    ///
    /// Concurrency: nobody passes before `world_size` calls have been made. A key serves one barrier: later
    /// callers pass at once. A caller that timed out has been counted all the same. All callers use the same
    /// kind of store: a prefix store has its barrier elsewhere than the store under it.
    ///
    /// Returns as dist_store_set; DIST_ERR_TIMEOUT says how many have come. Since 0.1.
    pub fn dist_store_barrier(
        store: *mut dist_store_t,
        key: *const c_char,
        world_size: i32,
        timeout_ms: i64,
    ) -> dist_status_t {
        let store = waiting(store)?;
        let key = required_key(key, "key")?;
        let size = index(world_size, "world_size")?;
        let deadline = store.deadline_of(milliseconds(timeout_ms, "timeout_ms")?);
        store.store().barrier(key, size, &deadline)
    }
}
