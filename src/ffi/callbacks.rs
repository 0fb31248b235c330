//! The exported functions of completion callbacks, which the library calls when a work is done.
//!
//! A callback is registered for a work, and can be withdrawn until the library calls it. All
//! callbacks of the process can be stopped and started again.

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

/// A completion callback of the caller: the function and its argument.
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
    /// One thread of the library calls the functions of all works, one after the other, in the
    /// order in which the works were done. If the work is already done, this thread calls the
    /// function as soon as it can; dist_work_on_complete itself never calls it. A work may have
    /// several functions. A function must not throw.
    ///
    /// Inside such a function, asynchronous calls are allowed. Calls that may block return
    /// DIST_ERR_INVALID_ARGUMENT:
    ///
    /// - collectives, messages and dist_batch_end without a work;
    /// - waits for pending works;
    /// - dist_init, dist_finalize, dist_spawn and dist_callbacks_stop;
    /// - calls that create, split or shrink groups, and calls that use stores.
    ///
    /// dist_finalize calls the functions of the world's works while the world still exists. If one
    /// of them does not return, dist_finalize drops the functions after it.
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
    /// @threads Any thread may call this at any time.
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
    /// Withdraws a function that dist_work_on_complete registered and that has not been called.
    ///
    /// If a function was registered several times with the same pointer, each call withdraws one
    /// registration. After DIST_OK the library does not call the function for this registration,
    /// and does not use the `user` of this registration any more.
    ///
    /// @param work in: the work.
    /// @param function in: the function that was registered.
    /// @param user in, optional: the pointer that was registered with the function.
    /// @agree nothing.
    /// @blocks No. The call does not wait for a function that is running.
    /// @return DIST_OK; DIST_ERR_NOT_FOUND if the function was not registered, has been called or
    ///   is running; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if `function` is NULL.
    /// @threads Any thread may call this at any time.
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
    /// Stops all completion callbacks of the process.
    ///
    /// The function is for an interpreter that is about to end. The library first calls the
    /// callbacks of works that are done. It drops the callbacks of pending works, and all callbacks
    /// that have not begun at the time-out. After DIST_OK no callback runs, and no callback will be
    /// called. Until dist_callbacks_start, dist_work_on_complete returns DIST_ERR_NOT_INITIALIZED.
    ///
    /// Works continue. The library still calls other functions of the caller: those of a store, of
    /// a back end and of the log.
    ///
    /// @param timeout_ms in: how long to wait; the default is 5 seconds.
    /// @agree nothing.
    /// @blocks Until the callbacks have returned and their thread has ended, but at most until the
    ///   time-out.
    /// @return DIST_OK; DIST_IN_PROGRESS if a callback or the thread of the callbacks still runs at
    ///   the time-out (call the function again); DIST_ERR_INVALID_ARGUMENT for a wrong time-out,
    ///   and inside a callback.
    /// @threads Any thread may call this at any time.
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
    /// Callbacks that dist_callbacks_stop dropped are not called.
    ///
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK, also if callbacks were not stopped.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_callbacks_start() -> dist_status_t {
        callbacks::start();
        Ok(())
    }
}
