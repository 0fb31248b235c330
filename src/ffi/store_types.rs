//! The types of custom stores in the C interface. Fields are only ever appended.
#![allow(non_camel_case_types, reason = "C names")]
#![allow(missing_debug_implementations, reason = "plain C structs")]

use super::constants::*;
use super::sized_struct::sized_structs;
use std::ffi::{c_char, c_void};

/// Receives bytes from a custom store or a plug-in.
///
/// `bytes` is borrowed for the call. `sink_arg` is the pointer that the library passed together
/// with this function.
pub type dist_store_sink_fn =
    Option<unsafe extern "C" fn(sink_arg: *mut c_void, bytes: *const c_void, len_bytes: usize)>;

/// The functions of a custom store (dist_store_custom_create), such as etcd or Redis.
///
/// The library passes `user` to each function. It calls the functions from any thread, and from
/// several threads at the same time. Each function returns a status within `timeout_ms` (1 or more,
/// or DIST_WAIT_FOREVER). Keys are terminated strings; values are bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_store_vtable_t {
    /// sizeof(dist_store_vtable_t).
    pub struct_size: usize,
    /// Required. Stores a value.
    pub set: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            key: *const c_char,
            value: *const c_void,
            len_bytes: usize,
            timeout_ms: i64,
        ) -> dist_status_t,
    >,
    /// Required. Waits until the key exists, then passes its value to `sink(sink_arg, ...)` once
    /// before returning.
    pub get: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            key: *const c_char,
            sink: dist_store_sink_fn,
            sink_arg: *mut c_void,
            timeout_ms: i64,
        ) -> dist_status_t,
    >,
    /// Required. Adds `amount` to a counter and writes the sum. A counter is decimal text; a
    /// missing counter is 0.
    pub add: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            key: *const c_char,
            amount: i64,
            result: *mut i64,
            timeout_ms: i64,
        ) -> dist_status_t,
    >,
    /// Required. Waits until all keys exist, or returns DIST_ERR_TIMEOUT.
    pub wait: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            keys: *const *const c_char,
            n: usize,
            timeout_ms: i64,
        ) -> dist_status_t,
    >,
    /// Required. Without waiting, writes 1 if all keys exist, otherwise 0.
    pub check: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            keys: *const *const c_char,
            n: usize,
            all_present: *mut i32,
            timeout_ms: i64,
        ) -> dist_status_t,
    >,
    /// Required. Removes a key, and writes 1 if the key existed, otherwise 0.
    pub delete_key: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            key: *const c_char,
            deleted: *mut i32,
            timeout_ms: i64,
        ) -> dist_status_t,
    >,
    /// Optional. Called once, after the last use of the store.
    pub destroy: Option<unsafe extern "C" fn(user: *mut c_void)>,
    /// Optional. Stores `desired` if the value is `expected`, or if the key is missing and
    /// `expected` is empty. Then passes the resulting value to the sink once. If the key is missing
    /// and `expected` is not empty, the resulting value is `expected`.
    pub compare_set: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            key: *const c_char,
            expected: *const c_void,
            expected_len_bytes: usize,
            desired: *const c_void,
            desired_len_bytes: usize,
            sink: dist_store_sink_fn,
            sink_arg: *mut c_void,
            timeout_ms: i64,
        ) -> dist_status_t,
    >,
    /// Optional. Appends bytes to a value, or creates a missing value.
    pub append: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            key: *const c_char,
            value: *const c_void,
            len_bytes: usize,
            timeout_ms: i64,
        ) -> dist_status_t,
    >,
    /// Optional. Writes the number of keys.
    pub num_keys: Option<
        unsafe extern "C" fn(user: *mut c_void, result: *mut i64, timeout_ms: i64) -> dist_status_t,
    >,
    /// Optional. Passes each key to the sink before returning.
    pub list_keys: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            sink: dist_store_sink_fn,
            sink_arg: *mut c_void,
            timeout_ms: i64,
        ) -> dist_status_t,
    >,
    /// Optional. Appends an item to a queue. The library uses the three queue functions only if all
    /// three are set; otherwise it implements queues with keys.
    pub queue_push: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            queue: *const c_char,
            item: *const c_void,
            len_bytes: usize,
            timeout_ms: i64,
        ) -> dist_status_t,
    >,
    /// Optional. Takes the first item of a queue and passes it to the sink once. If the queue is
    /// empty, the function waits if `block` is not 0, and returns DIST_ERR_QUEUE_EMPTY if `block`
    /// is 0.
    pub queue_pop: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            queue: *const c_char,
            block: i32,
            sink: dist_store_sink_fn,
            sink_arg: *mut c_void,
            timeout_ms: i64,
        ) -> dist_status_t,
    >,
    /// Optional. Writes the number of items in a queue.
    pub queue_len: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            queue: *const c_char,
            result: *mut i64,
            timeout_ms: i64,
        ) -> dist_status_t,
    >,
    /// Optional. Writes a second pointer to the same store, for example with a connection of its
    /// own. A wait through one pointer must not block calls through the other pointer. The library
    /// calls `destroy` once for each pointer. Without this function, all handles and threads share
    /// one pointer.
    pub clone: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            copy: *mut *mut c_void,
            timeout_ms: i64,
        ) -> dist_status_t,
    >,
    /// Optional. Ends the wait of another thread through this pointer: `wait` returns
    /// DIST_ERR_ABORTED at once. If no thread waits, the next `wait` through this pointer returns
    /// at once. The library calls this function only for pointers of `clone`, and needs `clone`
    /// for it. It then waits once for the whole time. Without this function, the library polls with
    /// `check`.
    pub interrupt: Option<unsafe extern "C" fn(user: *mut c_void)>,
}

sized_structs! {
    dist_store_vtable_t: 64, 136;
}
