//! A store that the caller implements: the C functions as a `Store`.

use super::args::Out;
use super::options;
use super::status::kind_of;
use super::types::*;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::store::{Store, missing_keys};
use std::ffi::{CString, c_char, c_void};
use std::sync::Arc;

/// The caller's functions and pointer.
struct Custom {
    functions: dist_store_vtable_t,
    user: *mut c_void,
}

// SAFETY: the caller promises that its functions may be called from any thread with that pointer.
unsafe impl Send for Custom {}
// SAFETY: as above.
unsafe impl Sync for Custom {}

impl std::fmt::Debug for Custom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the caller's own store")
    }
}

impl Drop for Custom {
    fn drop(&mut self) {
        if let Some(destroy) = self.functions.destroy {
            // SAFETY: the caller's function with the caller's pointer, called once.
            unsafe { destroy(self.user) };
        }
    }
}

dist_export! {
    /// Makes a store from the caller's own functions.
    ///
    /// `functions`: required, copied; every one but destroy must be set. `user`: handed to each; must stay valid
    /// until destroy has been called. `out`: out, required; owned by the caller, released with
    /// dist_store_release. compare_set, append and num_keys are not possible on such a store. Does not
    /// block. Any thread.
    ///
    /// Returns DIST_OK or DIST_ERR_INVALID_ARGUMENT, naming the function that is missing. Since 0.1.
    pub fn dist_store_custom_create(
        functions: *const dist_store_vtable_t,
        user: *mut c_void,
        out: *mut *mut dist_store_t,
    ) -> dist_status_t {
        let out = Out::handle(out, "out")?;
        if functions.is_null() {
            return Err(Error::invalid("argument functions is NULL"));
        }
        let functions = options::read(functions)?;
        check(&functions)?;
        super::store::give(&out, Arc::new(Custom { functions, user }), 0)
    }
}

fn check(functions: &dist_store_vtable_t) -> Result<()> {
    let present = [
        ("set", functions.set.is_some()),
        ("get", functions.get.is_some()),
        ("add", functions.add.is_some()),
        ("wait", functions.wait.is_some()),
        ("check", functions.check.is_some()),
        ("delete_key", functions.delete_key.is_some()),
    ];
    match present.iter().find(|(_, is_set)| !is_set) {
        Some((name, _)) => Err(missing(name)),
        None => Ok(()),
    }
}

fn missing(name: &str) -> Error {
    Error::invalid(format!("a custom store needs the function {name}"))
}

/// A key for C.
fn c_key(key: &[u8]) -> Result<CString> {
    CString::new(key).map_err(|_| Error::invalid("a key of a custom store contains a zero byte"))
}

fn left_ms(deadline: &Deadline) -> i64 {
    // At least 1: 0 would mean a default.
    i64::try_from(deadline.left().as_millis()).unwrap_or(i64::MAX).max(1)
}

fn outcome(what: &str, status: dist_status_t) -> Result<()> {
    if status == DIST_OK {
        return Ok(());
    }
    let text = super::status::text(status).to_string_lossy();
    let message = format!("{what} of the caller's own store returned {status} ({text})");
    Err(Error::new(kind_of(status), message))
}

/// Keys as C wants them; the strings must outlive the pointers.
fn c_keys(keys: &[&[u8]]) -> Result<Vec<CString>> {
    keys.iter().map(|key| c_key(key)).collect()
}

fn pointers(keys: &[CString]) -> Vec<*const c_char> {
    keys.iter().map(|key| key.as_ptr()).collect()
}

/// Takes the value that the caller's `get` hands over.
unsafe extern "C" fn take_value(sink_arg: *mut c_void, value: *const c_void, len_bytes: usize) {
    // SAFETY: the argument is the one that `Custom::get` passed, and the caller only passes it on.
    let slot = unsafe { &mut *sink_arg.cast::<Option<Vec<u8>>>() };
    if len_bytes == 0 || value.is_null() {
        *slot = Some(Vec::new());
        return;
    }
    // SAFETY: the caller hands over that many readable bytes for the length of this call.
    *slot = Some(unsafe { std::slice::from_raw_parts(value.cast::<u8>(), len_bytes) }.to_vec());
}

impl Store for Custom {
    fn set(&self, key: &[u8], value: &[u8], deadline: &Deadline) -> Result<()> {
        let function = self.functions.set.ok_or_else(|| missing("set"))?;
        let key = c_key(key)?;
        let (value, len) = (value.as_ptr().cast(), value.len());
        // SAFETY: the caller's function, with a terminated key and a value of that length.
        outcome("set", unsafe { function(self.user, key.as_ptr(), value, len, left_ms(deadline)) })
    }

    fn get(&self, key: &[u8], deadline: &Deadline) -> Result<Vec<u8>> {
        let function = self.functions.get.ok_or_else(|| missing("get"))?;
        let key = c_key(key)?;
        let mut value: Option<Vec<u8>> = None;
        let slot = (&raw mut value).cast();
        // SAFETY: the caller's function, with a terminated key and a sink whose argument lives here.
        let status =
            unsafe { function(self.user, key.as_ptr(), Some(take_value), slot, left_ms(deadline)) };
        outcome("get", status)?;
        value.ok_or_else(|| {
            let message = "get of the caller's own store succeeded without handing over a value";
            Error::new(ErrorKind::Backend, message)
        })
    }

    fn add(&self, key: &[u8], amount: i64, deadline: &Deadline) -> Result<i64> {
        let function = self.functions.add.ok_or_else(|| missing("add"))?;
        let key = c_key(key)?;
        let mut sum = 0;
        // SAFETY: the caller's function, with a terminated key and room for the result.
        let status =
            unsafe { function(self.user, key.as_ptr(), amount, &raw mut sum, left_ms(deadline)) };
        outcome("add", status).map(|()| sum)
    }

    fn compare_set(&self, _: &[u8], _: &[u8], _: &[u8], _: &Deadline) -> Result<Vec<u8>> {
        Err(impossible("compare_set"))
    }

    fn wait(&self, keys: &[&[u8]], deadline: &Deadline) -> Result<()> {
        let function = self.functions.wait.ok_or_else(|| missing("wait"))?;
        let strings = c_keys(keys)?;
        let list = pointers(&strings);
        // SAFETY: the caller's function, with as many terminated keys as it is told.
        let status = unsafe { function(self.user, list.as_ptr(), list.len(), left_ms(deadline)) };
        if kind_of(status) != ErrorKind::Timeout || status == DIST_OK {
            return outcome("wait", status);
        }
        let grace = Deadline::after_ms(1000);
        let is_missing = |key: &&&[u8]| !self.check(&[**key], &grace).unwrap_or(false);
        let absent: Vec<&[u8]> = keys.iter().filter(is_missing).copied().collect();
        Err(missing_keys(&self.describe(), &absent, deadline))
    }

    fn check(&self, keys: &[&[u8]], deadline: &Deadline) -> Result<bool> {
        let function = self.functions.check.ok_or_else(|| missing("check"))?;
        let strings = c_keys(keys)?;
        let list = pointers(&strings);
        let mut present = 0;
        // SAFETY: the caller's function, with as many terminated keys as it is told, and room for the result.
        let status = unsafe {
            function(self.user, list.as_ptr(), list.len(), &raw mut present, left_ms(deadline))
        };
        outcome("check", status).map(|()| present != 0)
    }

    fn num_keys(&self, _: &Deadline) -> Result<i64> {
        Err(impossible("num_keys"))
    }

    fn delete_key(&self, key: &[u8], deadline: &Deadline) -> Result<bool> {
        let function = self.functions.delete_key.ok_or_else(|| missing("delete_key"))?;
        let key = c_key(key)?;
        let mut deleted = 0;
        // SAFETY: the caller's function, with a terminated key and room for the result.
        let status =
            unsafe { function(self.user, key.as_ptr(), &raw mut deleted, left_ms(deadline)) };
        outcome("delete_key", status).map(|()| deleted != 0)
    }

    fn append(&self, _: &[u8], _: &[u8], _: &Deadline) -> Result<()> {
        Err(impossible("append"))
    }

    fn multi_get(&self, keys: &[&[u8]], deadline: &Deadline) -> Result<Vec<Vec<u8>>> {
        keys.iter().map(|key| self.get(key, deadline)).collect()
    }

    fn multi_set(&self, pairs: &[(&[u8], &[u8])], deadline: &Deadline) -> Result<()> {
        pairs.iter().try_for_each(|(key, value)| self.set(key, value, deadline))
    }
}

fn impossible(what: &str) -> Error {
    let message = format!("{what} is not possible on a caller's own store");
    Error::new(ErrorKind::Unsupported, message)
}
