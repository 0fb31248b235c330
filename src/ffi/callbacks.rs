//! Completion callbacks: registration for works, withdrawal, and the stop of all callbacks.

use super::args::milliseconds;
use super::status::status_of;
use super::types::*;
use super::work::WORKS;
use crate::api::work::callbacks::{self, CallbackKey};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use std::ffi::{CString, c_char, c_void};

/// The default timeout of dist_callbacks_stop in ms.
const DEFAULT_STOP_MS: u64 = 5000;

/// A caller's function with its argument.
struct CWorkCallback {
    function:
        unsafe extern "C" fn(status: dist_status_t, message: *const c_char, user: *mut c_void),
    user: *mut c_void,
}

// SAFETY: the caller promises that the function may be called on another thread with that pointer.
unsafe impl Send for CWorkCallback {}

impl CWorkCallback {
    fn new(function: dist_work_fn, user: *mut c_void) -> Result<Self> {
        let function = function.ok_or_else(|| Error::invalid("argument function is NULL"))?;
        Ok(Self { function, user })
    }

    fn key(&self) -> CallbackKey {
        CallbackKey { function: self.function as usize, user: self.user.addr() }
    }

    fn call(self, outcome: &Result<()>) {
        let (status, text) = match outcome {
            Ok(()) => (DIST_OK, String::new()),
            Err(error) => (status_of(error.kind()), error.message().replace('\0', "?")),
        };
        let message = CString::new(text).unwrap_or_default();
        // SAFETY: the caller's function, with the caller's pointer and a terminated message.
        unsafe { (self.function)(status, message.as_ptr(), self.user) };
    }
}

dist_export! {
    /// Registers a function that the library calls once a work is done.
    ///
    /// If the work is done already, the library calls the function at once, but never inside this
    /// call. A work may have several functions. One thread of the library calls the functions of
    /// all works, one after the other, in the order in which the works were done. The function must
    /// not throw.
    ///
    /// Inside such a function, calls that may block return DIST_ERR_INVALID_ARGUMENT. These are
    /// collectives, messages and dist_batch_end without a work, and waits for pending works. The
    /// others are dist_init, dist_finalize, dist_spawn, dist_callbacks_stop, and calls that create,
    /// split or shrink groups or use stores. Asynchronous calls are allowed. dist_finalize calls
    /// the functions of the world's works before the world is gone, but drops functions that wait
    /// behind one that does not return.
    ///
    /// @param work in: the work; the caller may release it before the function is called.
    /// @param function in: called once.
    /// @param user in, optional: passed to the function. It stays valid until the function has been
    ///   called, withdrawn (dist_work_remove_callback) or dropped (dist_callbacks_stop).
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if `function` is NULL;
    ///   DIST_ERR_OUT_OF_MEMORY if 1048576 functions are registered and not called; DIST_ERR_SYSTEM
    ///   if the thread cannot be started; DIST_ERR_NOT_INITIALIZED after dist_callbacks_stop.
    /// @threads any.
    /// @since 0.1
    pub fn dist_work_on_complete(
        work: *mut dist_work_t,
        function: dist_work_fn,
        user: *mut c_void,
    ) -> dist_status_t {
        let work = WORKS.get(work)?;
        let callback = CWorkCallback::new(function, user)?;
        work.on_complete(callback.key(), move |outcome| callback.call(outcome))
    }
}

dist_export! {
    /// Withdraws a function of dist_work_on_complete that has not been called.
    ///
    /// If a function was registered several times with the same pointer, each call withdraws one
    /// registration. After DIST_OK the library does not call the function for this registration,
    /// and does not use `user` any more.
    ///
    /// @param work in: the work.
    /// @param function in: the function.
    /// @param user in, optional: the pointer that was registered with the function.
    /// @agree nothing.
    /// @blocks no; it does not wait for a function that is running.
    /// @return DIST_OK; DIST_ERR_NOT_FOUND if the function was not registered, has been called or
    ///   is running; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if `function` is NULL.
    /// @threads any.
    /// @since 0.1
    pub fn dist_work_remove_callback(
        work: *mut dist_work_t,
        function: dist_work_fn,
        user: *mut c_void,
    ) -> dist_status_t {
        let work = WORKS.get(work)?;
        if work.withdraw_callback(CWorkCallback::new(function, user)?.key()) {
            return Ok(());
        }
        let message = "the work has no such callback: it was not registered, or was called, or is \
                       being called";
        Err(Error::new(ErrorKind::NotFound, message))
    }
}

dist_export! {
    #[in_progress]
    /// Stops completion callbacks, for an interpreter that is about to end.
    ///
    /// After DIST_OK no callback runs and none is called. The callbacks of works that are done are
    /// called first. The callbacks of pending works are dropped, as are all callbacks that have not
    /// begun at the time-out. Until dist_callbacks_start, dist_work_on_complete returns
    /// DIST_ERR_NOT_INITIALIZED. Works continue, and the library still calls other functions of the
    /// caller (of a store, a back end, the log).
    ///
    /// @param timeout_ms in: how long to wait; the default is 5 seconds.
    /// @agree nothing.
    /// @blocks until the callbacks have returned and their thread has ended, until the time-out at
    ///   the latest.
    /// @return DIST_OK; DIST_IN_PROGRESS if a callback or its thread still runs at the time-out:
    ///   call again; DIST_ERR_INVALID_ARGUMENT for a wrong time-out, and inside a callback.
    /// @threads any.
    /// @since 0.1
    pub fn dist_callbacks_stop(timeout_ms: i64) -> dist_status_t {
        let limit_ms = match timeout_ms {
            DIST_NO_WAIT => 0,
            0 => DEFAULT_STOP_MS,
            _ => milliseconds(timeout_ms, "timeout_ms")?,
        };
        callbacks::stop(&Deadline::after_ms(limit_ms))
    }
}

dist_export! {
    /// Allows completion callbacks again after dist_callbacks_stop.
    ///
    /// Dropped callbacks are not called.
    ///
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK, also if callbacks were not stopped.
    /// @threads any.
    /// @since 0.1
    pub fn dist_callbacks_start() -> dist_status_t {
        callbacks::start();
        Ok(())
    }
}
