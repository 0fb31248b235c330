//! Custom stores: stores that the caller implements as C functions.
//!
//! [`CallerStore`] implements [`Store`] with the functions of the caller. A function passes a
//! result of variable size, such as a value, to a *sink*: a C function of this file that copies the
//! bytes. Operations without a function of the caller are refused, or composed of other functions
//! ([`composed`]).

use super::args::OutPtr;
use super::sized_struct;
use super::status::kind_of;
use super::types::*;
use crate::base::deadline::{Deadline, Timeout};
use crate::base::error::{Error, ErrorKind, Result};
use crate::store::{Store, StoreWaiter, composed, missing_keys};
use crate::wait::pause;
use std::ffi::{CString, c_char, c_void};
use std::sync::Arc;
use std::time::Duration;

/// The caller's functions, and the pointer that each of them gets.
struct CallerStore {
    functions: dist_store_vtable_t,
    user: *mut c_void,
}

// SAFETY: the caller promises that its functions may be called from any thread with that pointer.
unsafe impl Send for CallerStore {}
// SAFETY: the caller promises the same for calls from several threads at once.
unsafe impl Sync for CallerStore {}

impl std::fmt::Debug for CallerStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the caller's own store")
    }
}

impl Drop for CallerStore {
    fn drop(&mut self) {
        if let Some(destroy) = self.functions.destroy {
            // SAFETY: the caller's function gets the caller's pointer and is called once.
            unsafe { destroy(self.user) };
        }
    }
}

dist_export! {
    /// Creates a store from functions of the caller.
    ///
    /// The library implements barriers with keys, and also queues unless all three queue functions
    /// are set. Without their functions, dist_store_compare_set, _append, _num_keys and _list_keys
    /// return DIST_ERR_UNSUPPORTED.
    ///
    /// @param functions in: the functions, copied; the required functions must be set.
    /// @param user in, optional: passed to each function; must stay valid until the library has
    ///   called `destroy`.
    /// @param out out: the store; owned by the caller, released with dist_store_release; NULL on
    ///   failure.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_ARGUMENT, with the name of a missing function in the
    ///   message; DIST_ERR_UNSUPPORTED if `functions` has a newer field; DIST_ERR_NOT_INITIALIZED
    ///   in a forked child.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_store_custom_create(
        functions: *const dist_store_vtable_t,
        user: *mut c_void,
        out: *mut *mut dist_store_t,
    ) -> dist_status_t {
        let out = OutPtr::handle(out, "out")?;
        if functions.is_null() {
            return Err(Error::invalid("argument functions is NULL"));
        }
        let functions = sized_struct::read(functions)?;
        check_functions(&functions)?;
        super::store::write_store(&out, Arc::new(CallerStore { functions, user }), Timeout::Default)
    }
}

fn check_functions(functions: &dist_store_vtable_t) -> Result<()> {
    let present = [
        ("set", functions.set.is_some()),
        ("get", functions.get.is_some()),
        ("add", functions.add.is_some()),
        ("wait", functions.wait.is_some()),
        ("check", functions.check.is_some()),
        ("delete_key", functions.delete_key.is_some()),
    ];
    match present.iter().find(|(_, is_set)| !is_set) {
        Some((name, _)) => Err(missing_function(name)),
        None => Ok(()),
    }
}

/// The time limit of the final check for keys, in a call whose deadline has passed.
const CHECK_TIME: Duration = Duration::from_secs(1);

/// The time between two polls of a store whose waits cannot be interrupted, at first and at most.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(1);
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(100);

fn missing_function(name: &str) -> Error {
    Error::invalid(format!("a custom store needs the function {name}"))
}

/// Converts a key to a C string.
fn c_key(key: &[u8]) -> Result<CString> {
    CString::new(key).map_err(|_| {
        Error::invalid(format!(
            "key \"{}\" has a zero byte: a caller's own store gets keys as C strings, which \
             cannot contain it",
            key[..key.len().min(128)].escape_ascii()
        ))
    })
}

fn remaining_ms(deadline: &Deadline) -> i64 {
    // Returns at least 1, because 0 means the default.
    match super::backend_call::to_timeout_ms(deadline.remaining()) {
        DIST_WAIT_FOREVER => DIST_WAIT_FOREVER,
        ms => ms.max(1),
    }
}

fn check_status(function_name: &str, status: dist_status_t) -> Result<()> {
    if status == DIST_OK {
        return Ok(());
    }
    let text = super::status::status_text(status).to_string_lossy();
    let message = format!("{function_name} of the caller's own store returned {status} ({text})");
    Err(Error::new(kind_of(status), message))
}

/// Converts keys to C strings. They must outlive the pointers of [`pointers`].
fn c_keys(keys: &[&[u8]]) -> Result<Vec<CString>> {
    keys.iter().map(|key| c_key(key)).collect()
}

fn pointers(keys: &[CString]) -> Vec<*const c_char> {
    keys.iter().map(|key| key.as_ptr()).collect()
}

/// A sink that stores the only value that a caller's function passes.
unsafe extern "C" fn store_value(sink_arg: *mut c_void, value: *const c_void, len_bytes: usize) {
    // SAFETY: `sink_arg` is the pointer to the `Option` in `call_for_value`. The caller's function
    // only passes it on, during that call.
    let slot = unsafe { &mut *sink_arg.cast::<Option<Vec<u8>>>() };
    // SAFETY: the caller passes that many readable bytes for the length of this call.
    *slot = Some(unsafe { copy_bytes(value, len_bytes) });
}

/// A sink that appends one of the keys that a caller's function passes.
unsafe extern "C" fn store_key(sink_arg: *mut c_void, key: *const c_void, len_bytes: usize) {
    // SAFETY: `sink_arg` is the pointer to the list in `list_keys`. The caller's function only
    // passes it on, during that call.
    let keys = unsafe { &mut *sink_arg.cast::<Vec<Vec<u8>>>() };
    // SAFETY: the caller passes that many readable bytes for the length of this call.
    keys.push(unsafe { copy_bytes(key, len_bytes) });
}

/// Copies bytes of the caller.
///
/// # Safety
/// `len_bytes` bytes at `bytes` are readable, unless `bytes` is NULL.
unsafe fn copy_bytes(bytes: *const c_void, len_bytes: usize) -> Vec<u8> {
    if len_bytes == 0 || bytes.is_null() {
        return Vec::new();
    }
    // SAFETY: the caller of this function promises readable bytes.
    unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), len_bytes) }.to_vec()
}

/// Runs a caller's function that passes one value to a sink. Returns `None` if the function passed
/// no value.
fn call_for_value(
    function_name: &str,
    call: impl FnOnce(*mut c_void) -> dist_status_t,
) -> Result<Option<Vec<u8>>> {
    let mut value: Option<Vec<u8>> = None;
    check_status(function_name, call((&raw mut value).cast()))?;
    Ok(value)
}

/// Like [`call_for_value`], for a function that must pass a value if it succeeds.
fn call_for_required_value(
    function_name: &str,
    call: impl FnOnce(*mut c_void) -> dist_status_t,
) -> Result<Vec<u8>> {
    call_for_value(function_name, call)?.ok_or_else(|| {
        let message =
            format!("{function_name} of the caller's own store succeeded without a value");
        Error::new(ErrorKind::Backend, message)
    })
}

fn pointer(bytes: &[u8]) -> *const c_void {
    bytes.as_ptr().cast()
}

impl CallerStore {
    fn has_queues(&self) -> bool {
        let f = &self.functions;
        f.queue_push.is_some() && f.queue_pop.is_some() && f.queue_len.is_some()
    }

    fn pop_item(&self, queue: &[u8], block: i32, deadline: &Deadline) -> Result<Vec<u8>> {
        let function = self.functions.queue_pop.ok_or_else(|| missing_function("queue_pop"))?;
        let queue = c_key(queue)?;
        call_for_required_value("queue_pop", |slot| {
            let (queue, left) = (queue.as_ptr(), remaining_ms(deadline));
            // SAFETY: the caller's function gets a terminated name and a sink whose argument
            // outlives the call.
            unsafe { function(self.user, queue, block, Some(store_value), slot, left) }
        })
    }
}

impl Store for CallerStore {
    fn describe(&self) -> String {
        "the caller's own store".into()
    }

    fn calls_program(&self) -> bool {
        true
    }

    fn set(&self, key: &[u8], value: &[u8], deadline: &Deadline) -> Result<()> {
        let function = self.functions.set.ok_or_else(|| missing_function("set"))?;
        let key = c_key(key)?;
        let (value, len) = (pointer(value), value.len());
        // SAFETY: the caller's function gets a terminated key and a value of that length.
        check_status("set", unsafe {
            function(self.user, key.as_ptr(), value, len, remaining_ms(deadline))
        })
    }

    fn get(&self, key: &[u8], deadline: &Deadline) -> Result<Vec<u8>> {
        let function = self.functions.get.ok_or_else(|| missing_function("get"))?;
        let grace = self.check_at_deadline(&[key], deadline)?;
        let deadline = grace.as_ref().unwrap_or(deadline);
        let name = c_key(key)?;
        let value = call_for_required_value("get", |slot| {
            let (name, left) = (name.as_ptr(), remaining_ms(deadline));
            // SAFETY: the caller's function gets a terminated key and a sink whose argument
            // outlives the call.
            unsafe { function(self.user, name, Some(store_value), slot, left) }
        });
        value.map_err(|error| self.name_missing_keys(error, &[key], deadline))
    }

    fn add(&self, key: &[u8], amount: i64, deadline: &Deadline) -> Result<i64> {
        let function = self.functions.add.ok_or_else(|| missing_function("add"))?;
        let key = c_key(key)?;
        let mut sum = 0;
        // SAFETY: the caller's function gets a terminated key and space for the result.
        let status = unsafe {
            function(self.user, key.as_ptr(), amount, &raw mut sum, remaining_ms(deadline))
        };
        check_status("add", status).map(|()| sum)
    }

    fn compare_set(
        &self,
        key: &[u8],
        expected: &[u8],
        desired: &[u8],
        deadline: &Deadline,
    ) -> Result<Vec<u8>> {
        let function =
            self.functions.compare_set.ok_or_else(|| unsupported_function("compare_set"))?;
        let key = c_key(key)?;
        call_for_required_value("compare_set", |slot| {
            // SAFETY: the caller's function gets a terminated key, two values of the lengths
            // given, and a sink whose argument outlives the call.
            unsafe {
                function(
                    self.user,
                    key.as_ptr(),
                    pointer(expected),
                    expected.len(),
                    pointer(desired),
                    desired.len(),
                    Some(store_value),
                    slot,
                    remaining_ms(deadline),
                )
            }
        })
    }

    fn wait(&self, keys: &[&[u8]], deadline: &Deadline) -> Result<()> {
        let function = self.functions.wait.ok_or_else(|| missing_function("wait"))?;
        if self.check_at_deadline(keys, deadline)?.is_some() {
            return Ok(());
        }
        let strings = c_keys(keys)?;
        let list = pointers(&strings);
        // SAFETY: the caller's function gets `list.len()` terminated keys.
        let status =
            unsafe { function(self.user, list.as_ptr(), list.len(), remaining_ms(deadline)) };
        check_status("wait", status).map_err(|error| self.name_missing_keys(error, keys, deadline))
    }

    /// Polls with `check`, which never times out: a store may write a line into a log for each wait
    /// that times out.
    fn wait_slice(&self, keys: &[&[u8]], slice: &Deadline) -> Result<bool> {
        let mut interval = MIN_POLL_INTERVAL;
        loop {
            if self.check(keys, &Deadline::after(slice.remaining().max(CHECK_TIME)))? {
                return Ok(true);
            }
            if slice.has_passed() {
                return Ok(false);
            }
            pause(interval, slice);
            interval = (2 * interval).min(MAX_POLL_INTERVAL);
        }
    }

    fn waiter(&self, deadline: &Deadline) -> Result<Option<Arc<dyn StoreWaiter>>> {
        if self.functions.interrupt.is_none() {
            return Ok(None);
        }
        Ok(self.clone_client(deadline)?.map(|client| Arc::new(client) as _))
    }

    fn second_client(&self, deadline: &Deadline) -> Result<Option<Arc<dyn Store>>> {
        Ok(self.clone_client(deadline)?.map(|client| Arc::new(client) as _))
    }

    fn check(&self, keys: &[&[u8]], deadline: &Deadline) -> Result<bool> {
        let function = self.functions.check.ok_or_else(|| missing_function("check"))?;
        let strings = c_keys(keys)?;
        let list = pointers(&strings);
        let mut present = 0;
        // SAFETY: the caller's function gets `list.len()` terminated keys and space for the
        // result.
        let status = unsafe {
            function(self.user, list.as_ptr(), list.len(), &raw mut present, remaining_ms(deadline))
        };
        check_status("check", status).map(|()| present != 0)
    }

    fn num_keys(&self, deadline: &Deadline) -> Result<i64> {
        let function = self.functions.num_keys.ok_or_else(|| unsupported_function("num_keys"))?;
        let mut count = 0;
        // SAFETY: the caller's function gets space for the result.
        let status = unsafe { function(self.user, &raw mut count, remaining_ms(deadline)) };
        check_status("num_keys", status).map(|()| count)
    }

    fn delete_key(&self, key: &[u8], deadline: &Deadline) -> Result<bool> {
        let function = self.functions.delete_key.ok_or_else(|| missing_function("delete_key"))?;
        let key = c_key(key)?;
        let mut deleted = 0;
        // SAFETY: the caller's function gets a terminated key and space for the result.
        let status =
            unsafe { function(self.user, key.as_ptr(), &raw mut deleted, remaining_ms(deadline)) };
        check_status("delete_key", status).map(|()| deleted != 0)
    }

    fn append(&self, key: &[u8], value: &[u8], deadline: &Deadline) -> Result<()> {
        let function = self.functions.append.ok_or_else(|| unsupported_function("append"))?;
        let key = c_key(key)?;
        let (value, len) = (pointer(value), value.len());
        // SAFETY: the caller's function gets a terminated key and a value of that length.
        let status =
            unsafe { function(self.user, key.as_ptr(), value, len, remaining_ms(deadline)) };
        check_status("append", status)
    }

    fn multi_get(&self, keys: &[&[u8]], deadline: &Deadline) -> Result<Vec<Vec<u8>>> {
        Store::wait(self, keys, deadline)?;
        keys.iter().map(|key| self.get(key, deadline)).collect()
    }

    fn multi_set(&self, pairs: &[(&[u8], &[u8])], deadline: &Deadline) -> Result<()> {
        pairs.iter().try_for_each(|(key, value)| self.set(key, value, deadline))
    }

    fn list_keys(&self, deadline: &Deadline) -> Result<Vec<Vec<u8>>> {
        let function = self.functions.list_keys.ok_or_else(|| unsupported_function("list_keys"))?;
        let mut keys: Vec<Vec<u8>> = Vec::new();
        let sink_arg = (&raw mut keys).cast();
        // SAFETY: the caller's function gets a sink whose argument outlives the call.
        let status =
            unsafe { function(self.user, Some(store_key), sink_arg, remaining_ms(deadline)) };
        check_status("list_keys", status).map(|()| keys)
    }

    fn queue_push(&self, queue: &[u8], item: &[u8], deadline: &Deadline) -> Result<()> {
        let Some(function) = self.functions.queue_push.filter(|_| self.has_queues()) else {
            return composed::push(self, queue, item, deadline);
        };
        let queue = c_key(queue)?;
        let (item, len) = (pointer(item), item.len());
        // SAFETY: the caller's function gets a terminated name and an item of that length.
        let status =
            unsafe { function(self.user, queue.as_ptr(), item, len, remaining_ms(deadline)) };
        check_status("queue_push", status)
    }

    fn queue_pop(&self, queue: &[u8], deadline: &Deadline) -> Result<Vec<u8>> {
        if !self.has_queues() {
            return composed::pop(self, queue, deadline);
        }
        self.pop_item(queue, 1, deadline).map_err(|error| match error.kind() {
            ErrorKind::Timeout => missing_keys(&self.describe(), &[queue], deadline),
            _ => error,
        })
    }

    fn queue_try_pop(&self, queue: &[u8], deadline: &Deadline) -> Result<Option<Vec<u8>>> {
        if !self.has_queues() {
            return composed::try_pop(self, queue, deadline);
        }
        match self.pop_item(queue, 0, deadline) {
            Err(error) if error.kind() == ErrorKind::QueueEmpty => Ok(None),
            item => item.map(Some),
        }
    }

    fn queue_len(&self, queue: &[u8], deadline: &Deadline) -> Result<i64> {
        let Some(function) = self.functions.queue_len.filter(|_| self.has_queues()) else {
            return composed::queue_len(self, queue, deadline);
        };
        let queue = c_key(queue)?;
        let mut length = 0;
        // SAFETY: the caller's function gets a terminated name and space for the result.
        let status =
            unsafe { function(self.user, queue.as_ptr(), &raw mut length, remaining_ms(deadline)) };
        check_status("queue_len", status).map(|()| length)
    }

    fn barrier(&self, key: &[u8], size: usize, deadline: &Deadline) -> Result<()> {
        composed::barrier(self, key, size, deadline)
    }
}

impl StoreWaiter for CallerStore {
    fn wait(&self, keys: &[&[u8]], deadline: &Deadline) -> Result<()> {
        Store::wait(self, keys, deadline)
    }

    fn interrupt(&self) {
        if let Some(interrupt) = self.functions.interrupt {
            // SAFETY: the caller's function gets a pointer that `clone` has made and that has not
            // been destroyed.
            unsafe { interrupt(self.user) };
        }
    }
}

impl CallerStore {
    /// Returns a client with a pointer of its own; `None` if the caller has no function for it.
    fn clone_client(&self, deadline: &Deadline) -> Result<Option<Self>> {
        let Some(function) = self.functions.clone else { return Ok(None) };
        let mut copy = std::ptr::null_mut();
        // SAFETY: the caller's function gets space for the pointer.
        let status = unsafe { function(self.user, &raw mut copy, remaining_ms(deadline)) };
        check_status("clone", status)?;
        Ok(Some(Self { functions: self.functions, user: copy }))
    }

    /// Handles a call whose deadline has already passed. Returns `None` if there is time left.
    /// Otherwise checks once whether all keys exist: if so, returns a deadline that leaves time for
    /// one round trip; if not, returns the timeout.
    fn check_at_deadline(&self, keys: &[&[u8]], deadline: &Deadline) -> Result<Option<Deadline>> {
        if !deadline.has_passed() {
            return Ok(None);
        }
        let grace = Deadline::after(CHECK_TIME);
        if self.check(keys, &grace)? {
            return Ok(Some(grace));
        }
        Err(self.name_missing_keys(
            Error::new(ErrorKind::Timeout, "no time to wait"),
            keys,
            deadline,
        ))
    }

    /// Adds the names of the missing keys to a timeout; returns any other error unchanged.
    fn name_missing_keys(&self, error: Error, keys: &[&[u8]], deadline: &Deadline) -> Error {
        if error.kind() != ErrorKind::Timeout {
            return error;
        }
        let grace = Deadline::after(CHECK_TIME);
        let is_missing = |key: &&&[u8]| !self.check(&[**key], &grace).unwrap_or(false);
        let absent: Vec<&[u8]> = keys.iter().filter(is_missing).copied().collect();
        missing_keys(&self.describe(), &absent, deadline)
    }
}

fn unsupported_function(function_name: &str) -> Error {
    let message = format!("the caller's own store has no function {function_name}");
    Error::new(ErrorKind::Unsupported, message)
}
