//! Works: issued operations, waits for them, and queries.

use super::args::{OutPtr, copy_text, to_i32, wait_limit};
use super::handle::{HandleKind, HandleTable};
use super::last_error;
use super::types::*;
use crate::api::{Work, WorkProgress};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use std::ffi::c_char;
use std::sync::Arc;
use std::time::Duration;

/// The default of `slice_ms` in `dist_work_wait_slice` and `dist_work_wait_any_slice`.
const DEFAULT_SLICE: Duration = Duration::from_millis(50);

/// Returns the deadlines of one slice and of the whole wait.
pub(super) fn slice_limits(timeout_ms: i64, slice_ms: i64) -> Result<(Deadline, Deadline)> {
    let whole = wait_limit(timeout_ms, "timeout_ms")?;
    let slice = match slice_ms {
        0 => Deadline::after(DEFAULT_SLICE),
        _ => wait_limit(slice_ms, "slice_ms")?,
    };
    Ok((if slice.remaining() < whole.remaining() { slice } else { whole }, whole))
}

pub(super) static WORKS: HandleTable<Work> = HandleTable::new(HandleKind::Work);

dist_export! {
    #[in_progress]
    /// Waits until a work is done.
    ///
    /// While it waits, the thread may run operations of the work's group. After any result except
    /// DIST_IN_PROGRESS, the library no longer uses the operation's buffers. A GPU may still use
    /// them until dist_work_synchronize has returned DIST_OK.
    ///
    /// @param work in: the work.
    /// @param timeout_ms in: how long to wait; the default is until the operation's own deadline.
    /// @agree nothing.
    /// @blocks Until the work is done, but at most until the time-out.
    /// @return DIST_OK. DIST_IN_PROGRESS if the time-out passed before the work was done: the
    ///   operation continues, and its buffers stay borrowed. If the operation has failed, its
    ///   error, which is the same for each call. DIST_ERR_TIMEOUT always means that the operation's
    ///   own deadline has passed, and is final. DIST_ERR_INVALID_HANDLE. DIST_ERR_INVALID_ARGUMENT
    ///   if the time-out is wrong, or if the call would wait for a work whose batch has not ended,
    ///   or would wait inside a completion callback.
    /// @threads Any thread may call this at any time. Several threads may wait for one work, any
    ///   number of times.
    /// @since 0.1
    pub fn dist_work_wait(work: *mut dist_work_t, timeout_ms: i64) -> dist_status_t {
        let work = WORKS.get(work)?;
        let outcome = work.wait(&wait_limit(timeout_ms, "timeout_ms")?);
        outcome.inspect_err(|_| last_error::set_issue_backtrace(work.issue_backtrace()))
    }
}

dist_export! {
    #[wait_slice]
    /// Waits for a work in one slice of a longer wait, so that the caller can do something between.
    ///
    /// An interpreter can run the handlers of signals between two slices. The caller repeats the
    /// call until the work is done or the whole wait is over. The search for deadlocks regards the
    /// slices as one wait, while a wait with a short time-out counts as one that ends by itself. So
    /// the caller must not intend to end the wait before `timeout_ms`. Any other call of the thread
    /// ends the wait in the view of the search.
    ///
    /// @param work in: the work.
    /// @param timeout_ms in: how long the whole wait may still take. The default is until the
    ///   operation's own deadline.
    /// @param slice_ms in: how long this call waits at most. The default is 50 ms.
    /// @agree nothing.
    /// @blocks Until the work is done, but at most for one slice and until the time-out.
    /// @return The results of dist_work_wait. DIST_IN_PROGRESS if the work is not done after the
    ///   slice.
    /// @threads As for dist_work_wait.
    /// @since 0.1
    pub fn dist_work_wait_slice(
        work: *mut dist_work_t,
        timeout_ms: i64,
        slice_ms: i64,
    ) -> dist_status_t {
        let work = WORKS.get(work)?;
        let (slice, whole) = slice_limits(timeout_ms, slice_ms)?;
        let outcome = work.wait_slice(&slice, &whole);
        outcome.inspect_err(|_| last_error::set_issue_backtrace(work.issue_backtrace()))
    }
}

dist_export! {
    #[in_progress]
    /// Waits until a work is done and, for the memory of a GPU, until the device is done as well.
    ///
    /// An operation over NCCL is done as soon as it is in its stream (`stream` in
    /// dist_call_options_t). The caller may then put more work into that stream, but the
    /// operation's buffers stay borrowed until the device is done. For all other works, this call
    /// is the same as dist_work_wait, also if the native back end serves the memory of a GPU.
    ///
    /// @param work in: the work, also of a batch.
    /// @param timeout_ms in: as in dist_work_wait.
    /// @agree nothing.
    /// @blocks Until the work and the device are done, but at most until the time-out.
    /// @return The results of dist_work_wait. For an operation on a device, also the failure of its
    ///   group, including DIST_ERR_TIMEOUT; the contents of the operation's output buffers are then
    ///   undefined. For such an operation, also DIST_ERR_INVALID_ARGUMENT inside a completion
    ///   callback.
    /// @threads Any thread may call this at any time. Several threads may wait for one work, any
    ///   number of times.
    /// @since 0.1
    pub fn dist_work_synchronize(work: *mut dist_work_t, timeout_ms: i64) -> dist_status_t {
        let work = WORKS.get(work)?;
        let outcome = work.synchronize(&wait_limit(timeout_ms, "timeout_ms")?);
        outcome.inspect_err(|_| last_error::set_issue_backtrace(work.issue_backtrace()))
    }
}

dist_export! {
    /// Reports whether a work is done.
    ///
    /// @param work in: the work.
    /// @param done out: 1 if the work is done, else 0.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK while the work is pending and if it has succeeded; the operation's error if
    ///   it has failed, with `done` 1; DIST_ERR_INVALID_HANDLE with `done` 0;
    ///   DIST_ERR_INVALID_ARGUMENT if `done` is NULL.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_work_test(work: *mut dist_work_t, done: *mut i32) -> dist_status_t {
        let out = OutPtr::required(done, "done")?;
        out.write(0);
        let work = WORKS.get(work)?;
        let Some(outcome) = work.outcome() else { return Ok(()) };
        out.write(1);
        outcome.inspect_err(|_| last_error::set_issue_backtrace(work.issue_backtrace()))
    }
}

dist_export! {
    #[on_error(0)]
    /// Copies the message of a work's error: "" while the work is pending and if it has succeeded.
    ///
    /// @param work in: the work.
    /// @param buf out: as in dist_last_error_copy; NULL only if `cap` is 0.
    /// @param cap in: as in dist_last_error_copy.
    /// @agree nothing.
    /// @blocks no.
    /// @return the number of bytes of the whole message with its terminator; 0 for an invalid
    ///   handle, and if `buf` is NULL and `cap` is not 0.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_work_error(work: *const dist_work_t, buf: *mut c_char, cap: usize) -> usize {
        let outcome = WORKS.get(work)?.outcome();
        let error = outcome.and_then(Result::err);
        copy_text(error.as_ref().map_or("", Error::message), buf, cap)
    }
}

dist_export! {
    #[on_error(0)]
    /// Returns the sequence number of a work's operation, from 1.
    ///
    /// Collectives of a group are numbered in the order of their issue, the same on all ranks. The
    /// messages of each rank have numbers of their own. A collective on byte strings has two
    /// numbers, and the call returns the first. The work of a batch has 1.
    ///
    /// @param work in: the work.
    /// @agree nothing.
    /// @blocks no.
    /// @return the number; 0 for an invalid handle, and before the work's batch has ended.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_work_sequence(work: *const dist_work_t) -> u64 {
        Ok(WORKS.get(work)?.sequence().unwrap_or(0))
    }
}

dist_export! {
    #[on_error(0)]
    /// Returns when a work was issued, in nanoseconds since 1970, as in the flight recorder.
    ///
    /// The library reads CLOCK_REALTIME once, when the recorder begins, and then adds the time of
    /// the monotonic clock. Later changes of the wall clock therefore do not affect the result.
    ///
    /// @param work in: the work.
    /// @agree nothing.
    /// @blocks no.
    /// @return the time; 0 for an invalid handle, and before the work's batch has ended.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_work_start_ns(work: *const dist_work_t) -> u64 {
        Ok(WORKS.get(work)?.started_ns().unwrap_or(0))
    }
}

dist_export! {
    #[on_error(0)]
    /// Returns the time from the issue of a work until it was done, in nanoseconds.
    ///
    /// For a pending work, this is the time from its issue until now.
    ///
    /// @param work in: the work.
    /// @agree nothing.
    /// @blocks no.
    /// @return the time; 0 for an invalid handle, and before the work's batch has ended.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_work_elapsed_ns(work: *const dist_work_t) -> u64 {
        Ok(u64::try_from(WORKS.get(work)?.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

dist_export! {
    #[on_error(-1)]
    /// Returns the rank that sent the received message; for a send, the rank that receives it.
    ///
    /// @param work in: the work.
    /// @agree nothing.
    /// @blocks no.
    /// @return the rank; -1 for an invalid handle, while the work is pending, after an error, and
    ///   if the work is no message.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_work_source(work: *const dist_work_t) -> i32 {
        WORKS.get(work)?.source().map_or(Ok(-1), to_i32)
    }
}

dist_export! {
    #[on_error(-1)]
    /// Returns the tag of the message that a work received or sent.
    ///
    /// @param work in: the work.
    /// @agree nothing.
    /// @blocks no.
    /// @return the tag; -1 for an invalid handle, while the work is pending, after an error, and if
    ///   the work is no message.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_work_tag(work: *const dist_work_t) -> i32 {
        let tag = WORKS.get(work)?.tag();
        Ok(tag.and_then(|tag| i32::try_from(tag).ok()).unwrap_or(-1))
    }
}

dist_export! {
    #[on_error(0)]
    /// Returns how many elements a work has received.
    ///
    /// The message may have fewer elements than the buffer.
    ///
    /// @param work in: the work.
    /// @agree nothing.
    /// @blocks no.
    /// @return the number; 0 for an invalid handle, while the work is pending, after an error, and
    ///   if the work is no receive.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_work_received_count(work: *const dist_work_t) -> usize {
        Ok(WORKS.get(work)?.received_count().unwrap_or(0))
    }
}

dist_export! {
    /// Releases a work.
    ///
    /// If the work is pending, its operation continues: the buffers stay borrowed until it is done,
    /// and the library still calls its callbacks.
    ///
    /// @param work in, optional: the work; the handle is consumed. NULL does nothing.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_HANDLE.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_work_release(work: *mut dist_work_t) -> dist_status_t {
        if work.is_null() {
            return Ok(());
        }
        remove_handle(work)
    }
}

/// Creates the handle of a work before the work is issued.
pub(super) fn create_handle(work: &Arc<Work>) -> Result<*mut dist_work_t> {
    let handle: *mut dist_work_t = WORKS.insert(Arc::clone(work))?;
    work.set_handle(handle.addr());
    Ok(handle)
}

/// Removes the handle of a work.
pub(super) fn remove_handle(handle: *mut dist_work_t) -> Result<()> {
    // `clear_handle` clears the work's token before it locks the list of completed works; the
    // section "No released work" in `api::work::events` explains why.
    WORKS.remove(handle.cast_const())?.clear_handle();
    Ok(())
}

/// Waits until a work has ended, for calls that block. There is no limit except the operation's own
/// deadline.
pub(super) fn wait_until_done(work: &Work) -> Result<()> {
    let limit = wait_limit(DIST_WAIT_FOREVER, "timeout_ms")?;
    while work.wait(&limit)? == WorkProgress::Pending {}
    Ok(())
}
