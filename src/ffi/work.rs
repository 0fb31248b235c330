//! Works: operations that were issued, waited for or asked about.

use super::args::{Out, copy_text, number, wait_limit};
use super::handle::{Kind, Table};
use super::last_error;
use super::types::*;
use crate::api::{Progress, Work};
use crate::base::error::{Error, Result};
use std::ffi::c_char;
use std::sync::Arc;

pub(super) static WORKS: Table<Work> = Table::new(Kind::Work);

dist_export! {
    #[in_progress]
    /// Waits until a work is done.
    ///
    /// `work`: required. `timeout_ms`: how long to wait; the default is until the operation's own deadline.
    /// The thread may run operations of the work's group meanwhile. Blocks until the work is
    /// done or the time is over. Any thread, any number of times, several threads at once. Once it has returned
    /// something else than DIST_IN_PROGRESS, the library does not touch the operation's buffers any more; a GPU may, until
    /// dist_work_synchronize.
    ///
    /// Returns DIST_OK; DIST_IN_PROGRESS if the time was over first: the work goes on, and its buffers stay lent; the
    /// operation's error, which stays (DIST_ERR_TIMEOUT is always the operation's own deadline, and final);
    /// DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT for a wrong time, a work whose batch has not ended, and a
    /// pending one inside a completion callback. Since 0.1.
    pub fn dist_work_wait(work: *mut dist_work_t, timeout_ms: i64) -> dist_status_t {
        let work = WORKS.get(work)?;
        let outcome = work.wait(&wait_limit(timeout_ms, "timeout_ms")?);
        outcome.inspect_err(|_| last_error::issued_at(work.issued_at()))
    }
}

dist_export! {
    #[in_progress]
    /// Waits until a work is done, and the device with it, where its buffers are in the memory of a GPU.
    ///
    /// Such a work is done as soon as the operation is in its stream (see `stream` in dist_call_options_t), which is when
    /// the caller may put more into that stream; its buffers stay lent until the device is done. For other works, and where the
    /// native back end carries the memory of a GPU, this is dist_work_wait. `work`: required; also that of a batch. `timeout_ms`: as in dist_work_wait.
    /// Any thread, any number of times.
    ///
    /// Returns as dist_work_wait; for an operation on a device also the failure of its group, DIST_ERR_TIMEOUT among it, after
    /// which what it has written is undefined. Since 0.1.
    pub fn dist_work_synchronize(work: *mut dist_work_t, timeout_ms: i64) -> dist_status_t {
        let work = WORKS.get(work)?;
        let outcome = work.synchronize(&wait_limit(timeout_ms, "timeout_ms")?);
        outcome.inspect_err(|_| last_error::issued_at(work.issued_at()))
    }
}

dist_export! {
    /// Whether a work is done.
    ///
    /// `work`: required. `done`: out, required; 1 or 0. Does not block. Any thread.
    ///
    /// Returns DIST_OK while it is pending or where it has succeeded, else the operation's error with `done` 1;
    /// DIST_ERR_INVALID_HANDLE, DIST_ERR_INVALID_ARGUMENT with `done` 0. Since 0.1.
    pub fn dist_work_test(work: *mut dist_work_t, done: *mut i32) -> dist_status_t {
        let out = Out::required(done, "done")?;
        out.write(0);
        let work = WORKS.get(work)?;
        let Some(outcome) = work.outcome() else { return Ok(()) };
        out.write(1);
        outcome.inspect_err(|_| last_error::issued_at(work.issued_at()))
    }
}

dist_export! {
    #[on_error(0)]
    /// Copies the message of a work's error; "" while it is pending and where it has succeeded.
    ///
    /// `work`: required. `buf`, `cap`: as in dist_last_error_copy. Returns the bytes that the whole message needs, its
    /// terminator included; 0 for an invalid handle. Does not block. Any thread. Since 0.1.
    pub fn dist_work_error(work: *const dist_work_t, buf: *mut c_char, cap: usize) -> usize {
        let outcome = WORKS.get(work)?.outcome();
        let error = outcome.and_then(Result::err);
        copy_text(error.as_ref().map_or("", Error::message), buf, cap)
    }
}

dist_export! {
    #[on_error(0)]
    /// The number of a work's operation: of a collective in its group, from 1, the same on all ranks; messages are
    /// counted by themselves.
    ///
    /// `work`: required. Returns 0 for an invalid handle and before its batch has ended. Does not block. Any thread.
    /// Since 0.1.
    pub fn dist_work_sequence(work: *const dist_work_t) -> u64 {
        Ok(WORKS.get(work)?.sequence().unwrap_or(0))
    }
}

dist_export! {
    #[on_error(0)]
    /// Returns when a work was issued, in nanoseconds since 1970, as the flight recorder's entries have it.
    ///
    /// It is the time of CLOCK_REALTIME when the recorder began, advanced by the monotonic clock: later changes of the
    /// wall clock do not show in it.
    ///
    /// @param work in: the work.
    /// @agree nothing.
    /// @blocks no.
    /// @return the time; 0 for an invalid handle and before its batch has ended.
    /// @threads any.
    /// @since 0.1
    pub fn dist_work_start_ns(work: *const dist_work_t) -> u64 {
        Ok(WORKS.get(work)?.started_ns().unwrap_or(0))
    }
}

dist_export! {
    #[on_error(0)]
    /// The time from the issue of a work until it was done, or until now, in nanoseconds.
    ///
    /// `work`: required. Returns 0 for an invalid handle and before its batch has ended. Does not block. Any thread.
    /// Since 0.1.
    pub fn dist_work_elapsed_ns(work: *const dist_work_t) -> u64 {
        Ok(u64::try_from(WORKS.get(work)?.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

dist_export! {
    #[on_error(-1)]
    /// The rank that sent the message which a work received; of a send, the rank that got it.
    ///
    /// `work`: required. Returns -1 for an invalid handle, while it is pending, after an error, and for anything but
    /// a message. Does not block. Any thread. Since 0.1.
    pub fn dist_work_source(work: *const dist_work_t) -> i32 {
        WORKS.get(work)?.source().map_or(Ok(-1), number)
    }
}

dist_export! {
    #[on_error(-1)]
    /// The tag of the message which a work received or sent.
    ///
    /// `work`: required. Returns -1 as dist_work_source does. Does not block. Any thread. Since 0.1.
    pub fn dist_work_tag(work: *const dist_work_t) -> i32 {
        let tag = WORKS.get(work)?.tag();
        Ok(tag.and_then(|tag| i32::try_from(tag).ok()).unwrap_or(-1))
    }
}

dist_export! {
    #[on_error(0)]
    /// How many elements a work has received: those of the message, which may be fewer than there was room for.
    ///
    /// `work`: required. Returns 0 for an invalid handle, while it is pending, after an error, and for anything but a
    /// receive. Does not block. Any thread. Since 0.1.
    pub fn dist_work_received_count(work: *const dist_work_t) -> usize {
        Ok(WORKS.get(work)?.received_count().unwrap_or(0))
    }
}

dist_export! {
    /// Releases a work. A pending one goes on: its buffers stay lent until it is done, and its functions are called.
    ///
    /// `work`: NULL does nothing. Does not block. Any thread.
    ///
    /// Returns DIST_OK or DIST_ERR_INVALID_HANDLE. Since 0.1.
    pub fn dist_work_release(work: *mut dist_work_t) -> dist_status_t {
        if work.is_null() {
            return Ok(());
        }
        take_handle(work)
    }
}

/// Gives a work a handle, before it is issued.
pub(super) fn give_handle(work: &Arc<Work>) -> Result<*mut dist_work_t> {
    let handle: *mut dist_work_t = WORKS.insert(Arc::clone(work))?;
    work.set_handle(handle.addr());
    Ok(handle)
}

/// Ends the handle of a work.
pub(super) fn take_handle(handle: *mut dist_work_t) -> Result<()> {
    // In this order: see `api::events`.
    WORKS.remove(handle.cast_const())?.clear_handle();
    Ok(())
}

/// Waits until a work has ended, for calls that block.
pub(super) fn wait_to_the_end(work: &Work) -> Result<()> {
    let limit = wait_limit(DIST_WAIT_FOREVER, "timeout_ms")?;
    while work.wait(&limit)? == Progress::Pending {}
    Ok(())
}
