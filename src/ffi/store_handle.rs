//! Handles of stores: their time-outs, their addresses, and their release.

use super::args::{copy_text, timeout};
use super::store::STORES;
use super::types::*;
use crate::base::error::{Error, ErrorKind, Result};
use std::ffi::c_char;

dist_export! {
    /// Sets the time-out of calls through this handle.
    ///
    /// DIST_NO_WAIT has three effects:
    ///
    /// - Calls that wait for other callers (dist_store_get, dist_store_wait, dist_store_multi_get,
    ///   dist_store_queue_pop) check once, and return DIST_ERR_TIMEOUT if the key or item is
    ///   missing.
    /// - dist_store_barrier needs a time-out of its own.
    /// - All other calls have a time-out of 5 minutes.
    ///
    /// @param store in: the store.
    /// @param timeout_ms in: the default is 5 minutes.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_ARGUMENT; DIST_ERR_INVALID_HANDLE;
    ///   DIST_ERR_NOT_INITIALIZED in a forked child.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_store_set_timeout(store: *mut dist_store_t, timeout_ms: i64) -> dist_status_t {
        STORES.get(store)?.set_timeout(timeout(timeout_ms, "timeout_ms")?);
        Ok(())
    }
}

dist_export! {
    #[on_error(0)]
    /// Returns the time-out of calls through this handle in milliseconds.
    ///
    /// @param store in: the store.
    /// @agree nothing.
    /// @blocks no.
    /// @return the time-out; DIST_WAIT_FOREVER; DIST_NO_WAIT; 0 for an invalid handle.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_store_get_timeout(store: *const dist_store_t) -> i64 {
        Ok(STORES.get(store)?.timeout().number())
    }
}

dist_export! {
    #[on_error(-1)]
    /// Returns the port of a TCP store.
    ///
    /// A prefix store returns the port of its inner store.
    ///
    /// @param store in: the store.
    /// @agree nothing.
    /// @blocks no.
    /// @return the port; -1 for a store without a port and for an invalid handle.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_store_port(store: *const dist_store_t) -> i32 {
        Ok(i32::from(store_address(store)?.1))
    }
}

dist_export! {
    #[on_error(0)]
    /// Copies the host of a TCP store.
    ///
    /// A prefix store has the host of its inner store.
    ///
    /// @param store in: the store.
    /// @param buf out: the terminated name, truncated to fit; NULL only if `cap` is 0.
    /// @param cap in: the size of `buf` in bytes.
    /// @agree nothing.
    /// @blocks no.
    /// @return the size of the whole name in bytes with its terminator; 0 for a store without a
    ///   host, for an invalid handle, and if `buf` is NULL and `cap` is not 0.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_store_host(store: *const dist_store_t, buf: *mut c_char, cap: usize) -> usize {
        copy_text(&store_address(store)?.0, buf, cap)
    }
}

fn store_address(store: *const dist_store_t) -> Result<(String, u16)> {
    let store = STORES.get(store)?;
    store.store().address().ok_or_else(|| {
        let what = store.store().describe();
        Error::new(ErrorKind::Unsupported, format!("{what} has no host and port"))
    })
}

dist_export! {
    /// Releases a store handle.
    ///
    /// The store lives as long as groups, prefix stores or other handles use it. When its last user
    /// is gone, the process that hosts the store stops serving.
    ///
    /// @param store in, optional: the handle; NULL does nothing.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED in a forked child.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_store_release(store: *mut dist_store_t) -> dist_status_t {
        STORES.release_handle(store, drop)
    }
}
