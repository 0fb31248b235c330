//! Completion callbacks: given to works, withdrawn, and stopped as a whole.

use super::args::milliseconds;
use super::status::status_of;
use super::types::*;
use super::work::WORKS;
use crate::api::callbacks::{self, CallbackKey};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use std::ffi::{CString, c_char, c_void};

/// How long dist_callbacks_stop waits if it is not told.
const DRAIN_MS: u64 = 5000;

/// A caller's function, and what it is called with.
struct Callback {
    function:
        unsafe extern "C" fn(status: dist_status_t, message: *const c_char, user: *mut c_void),
    user: *mut c_void,
}

// SAFETY: the caller promises that the function may be called on another thread with that pointer.
unsafe impl Send for Callback {}

impl Callback {
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
    /// Has a function called when a work is done; soon, if it is done already.
    ///
    /// Several may be given. The functions run one after the other on a thread of the library, in the order in which
    /// their works were done, and never inside this call. Inside one, calls that block are refused with
    /// DIST_ERR_INVALID_ARGUMENT (collectives and messages without a work, waits for pending works, dist_init,
    /// dist_finalize, dist_callbacks_stop, making groups, calls of stores); asynchronous calls are not. The function must
    /// not throw. dist_finalize calls those of the world's works before the world goes.
    ///
    /// @param work in: may be released before the function is called.
    /// @param function in: called once.
    /// @param user in, optional: handed to the function; must stay valid until that has been called, withdrawn or dropped
    ///   (dist_work_remove_callback, dist_callbacks_stop).
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT; DIST_ERR_OUT_OF_MEMORY if 1048576 functions
    ///   wait for their works; DIST_ERR_SYSTEM if the thread cannot be started; DIST_ERR_NOT_INITIALIZED after
    ///   dist_callbacks_stop.
    /// @threads any.
    /// @since 0.1
    pub fn dist_work_on_complete(
        work: *mut dist_work_t,
        function: dist_work_fn,
        user: *mut c_void,
    ) -> dist_status_t {
        let work = WORKS.get(work)?;
        let callback = Callback::new(function, user)?;
        work.on_complete(callback.key(), move |outcome| callback.call(outcome))
    }
}

dist_export! {
    /// Withdraws a function given with dist_work_on_complete that has not been called.
    ///
    /// If the same function was given with the same pointer several times, each call withdraws one of them. After DIST_OK
    /// the function is never called for that one, and the library does not use `user` any more.
    ///
    /// @param work in: the work that it was given for.
    /// @param function in: the function.
    /// @param user in, optional: the pointer that was given with it.
    /// @agree nothing.
    /// @blocks no; it does not wait for a function that is being called.
    /// @return DIST_OK; DIST_ERR_NOT_FOUND if it was not given, was called or is being called; DIST_ERR_INVALID_HANDLE;
    ///   DIST_ERR_INVALID_ARGUMENT if `function` is NULL.
    /// @threads any.
    /// @since 0.1
    pub fn dist_work_remove_callback(
        work: *mut dist_work_t,
        function: dist_work_fn,
        user: *mut c_void,
    ) -> dist_status_t {
        let work = WORKS.get(work)?;
        if work.withdraw_callback(Callback::new(function, user)?.key()) {
            return Ok(());
        }
        let message = "the work has no such callback: it was not given, or was called, or is being called";
        Err(Error::new(ErrorKind::NotFound, message))
    }
}

dist_export! {
    #[in_progress]
    /// Stops completion callbacks, for an interpreter that is about to end: none is called any more when it has returned
    /// DIST_OK.
    ///
    /// Callbacks of works that are done are called first. Callbacks of pending works are dropped, as are all callbacks
    /// that have not begun at the time-out. Until dist_callbacks_start, dist_work_on_complete returns
    /// DIST_ERR_NOT_INITIALIZED. Works themselves go on, and other functions of the caller (those of a store, of a back
    /// end, of the log) are called as before.
    ///
    /// @param timeout_ms in: how long to wait; 0 for 5 seconds, DIST_NO_WAIT, DIST_WAIT_FOREVER.
    /// @agree nothing.
    /// @blocks until the callbacks have returned and their thread has ended, until the time-out at the latest.
    /// @return DIST_OK; DIST_IN_PROGRESS if a callback or their thread still runs at the time-out: call it again;
    ///   DIST_ERR_INVALID_ARGUMENT for a wrong time, and inside a callback.
    /// @threads any.
    /// @since 0.1
    pub fn dist_callbacks_stop(timeout_ms: i64) -> dist_status_t {
        let limit_ms = match timeout_ms {
            DIST_NO_WAIT => 0,
            0 => DRAIN_MS,
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
    /// @return DIST_OK, also where they were not stopped.
    /// @threads any.
    /// @since 0.1
    pub fn dist_callbacks_start() -> dist_status_t {
        callbacks::start();
        Ok(())
    }
}
