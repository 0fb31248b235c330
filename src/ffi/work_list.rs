//! Functions that wait for several works at once, or test several works.

use super::args::{OutPtr, slice, wait_limit};
use super::last_error;
use super::types::*;
use super::work::{WORKS, slice_limits};
use crate::api::work::work_list::{self, AnyWorkDone, WorkList};
use crate::api::{Work, WorkProgress};
use crate::base::error::{ErrorContext as _, Result};
use std::sync::Arc;

/// Reads the works in a caller's list. A NULL entry gives `None`.
fn read_works(works: *const *mut dist_work_t, n: usize) -> Result<Vec<Option<Arc<Work>>>> {
    let work = |(index, handle): (usize, &*mut dist_work_t)| match handle.is_null() {
        true => Ok(None),
        false => {
            WORKS.get(*handle).map(|it| Some(Arc::clone(&it))).context(|| format!("works[{index}]"))
        }
    };
    slice(works, n, "works")?.iter().enumerate().map(work).collect()
}

/// Records the back-trace of the call that issued a failed work, for the error that this call
/// returns.
fn record_issue_backtrace(works: &WorkList, index: usize) {
    if let Some(Some(work)) = works.get(index) {
        last_error::set_issue_backtrace(work.issue_backtrace());
    }
}

/// Writes the index of a completed work, and returns the work's outcome.
fn write_found_index(
    found: AnyWorkDone,
    works: &WorkList,
    out: &OutPtr<usize>,
) -> Result<WorkProgress> {
    match found {
        AnyWorkDone::Done(index, outcome) => {
            out.write(index);
            outcome
                .inspect_err(|_| record_issue_backtrace(works, index))
                .map(|()| WorkProgress::Done)
        }
        AnyWorkDone::Pending => Ok(WorkProgress::Pending),
        AnyWorkDone::NoWorks => Ok(WorkProgress::Done),
    }
}

dist_export! {
    #[in_progress]
    /// Waits until all works of a list are done.
    ///
    /// While it waits, the thread may run operations of the works' groups. The rules of
    /// dist_work_wait for buffers and for repeated waits apply to each work.
    ///
    /// @param works in: `n` works of any groups, borrowed for the call; NULL entries are skipped;
    ///   NULL only if `n` is 0.
    /// @param n in: the length of the list.
    /// @param timeout_ms in: for all works together; the default is until the operations' own
    ///   deadlines.
    /// @agree nothing.
    /// @blocks Until all works are done, but at most until the time-out.
    /// @return DIST_OK. DIST_IN_PROGRESS if the time-out passed before all works were done. If all
    ///   works are done and some have failed: the first error in the order of the list, whose
    ///   message begins with the index of the work. DIST_ERR_INVALID_HANDLE, whose message names
    ///   the index of the wrong handle. DIST_ERR_INVALID_ARGUMENT if an argument is wrong, or if
    ///   the call would wait for a work whose batch has not ended, or would wait inside a
    ///   completion callback.
    /// @threads Any thread may call this at any time. Several threads may wait for the same works.
    /// @since 0.1
    pub fn dist_work_wait_all(
        works: *const *mut dist_work_t,
        n: usize,
        timeout_ms: i64,
    ) -> dist_status_t {
        let works = read_works(works, n)?;
        let limit = wait_limit(timeout_ms, "timeout_ms")?;
        work_list::wait_all(&works, &limit).inspect_err(|_| {
            let failed = |work: &Option<Arc<Work>>| {
                work.as_ref().is_some_and(|work| work.outcome().is_some_and(|it| it.is_err()))
            };
            works.iter().position(failed).into_iter().for_each(|index| record_issue_backtrace(&works, index));
        })
    }
}

dist_export! {
    #[in_progress]
    /// Waits until at least one work of a list is done.
    ///
    /// If several works are done, the call reports the first one in the list. To wait for the
    /// remaining works, replace this work by NULL and call again.
    ///
    /// @param works in: as in dist_work_wait_all.
    /// @param n in: the length of the list.
    /// @param timeout_ms in: how long to wait; the default is until the operations' own deadlines.
    /// @param index out: the index of the work that is done; `n` if there is none.
    /// @agree nothing.
    /// @blocks Until a work is done, but at most until the time-out.
    /// @return DIST_OK, also if all entries are NULL. If the work at `index` has failed, its error.
    ///   DIST_IN_PROGRESS if the time-out passed before a work was done. DIST_ERR_INVALID_HANDLE
    ///   and DIST_ERR_INVALID_ARGUMENT as in dist_work_wait_all; `index` is then `n`.
    ///   DIST_ERR_INVALID_ARGUMENT also if `index` is NULL.
    /// @threads Any thread may call this at any time. Several threads may wait for the same works.
    /// @since 0.1
    pub fn dist_work_wait_any(
        works: *const *mut dist_work_t,
        n: usize,
        timeout_ms: i64,
        index: *mut usize,
    ) -> dist_status_t {
        let out = OutPtr::required(index, "index")?;
        out.write(n);
        let works = read_works(works, n)?;
        let found = work_list::wait_any(&works, &wait_limit(timeout_ms, "timeout_ms")?)?;
        write_found_index(found, &works, &out)
    }
}

dist_export! {
    #[wait_slice]
    /// Waits for any work of a list in one slice of a longer wait.
    ///
    /// This is to dist_work_wait_any what dist_work_wait_slice is to dist_work_wait. The caller
    /// repeats the call with the same list.
    ///
    /// @param works in: as in dist_work_wait_all.
    /// @param n in: the length of the list.
    /// @param timeout_ms in: how long the whole wait may still take. The default is until the
    ///   operations' own deadlines.
    /// @param slice_ms in: how long this call waits at most. The default is 50 ms.
    /// @param index out: as in dist_work_wait_any.
    /// @agree nothing.
    /// @blocks Until a work is done, but at most for one slice and until the time-out.
    /// @return The results of dist_work_wait_any. DIST_IN_PROGRESS if no work is done after the
    ///   slice.
    /// @threads As for dist_work_wait_any.
    /// @since 0.1
    pub fn dist_work_wait_any_slice(
        works: *const *mut dist_work_t,
        n: usize,
        timeout_ms: i64,
        slice_ms: i64,
        index: *mut usize,
    ) -> dist_status_t {
        let out = OutPtr::required(index, "index")?;
        out.write(n);
        let works = read_works(works, n)?;
        let (slice, whole) = slice_limits(timeout_ms, slice_ms)?;
        let found = work_list::wait_any_slice(&works, &slice, &whole)?;
        write_found_index(found, &works, &out)
    }
}

dist_export! {
    #[in_progress]
    /// Reports whether a work of a list is done.
    ///
    /// @param works in: as in dist_work_wait_all.
    /// @param n in: the length of the list.
    /// @param index out: as in dist_work_wait_any.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK, also if all entries are NULL. If the work at `index` has failed, its error.
    ///   DIST_IN_PROGRESS if no work is done; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if
    ///   an argument is wrong, also if `index` is NULL.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_work_test_any(
        works: *const *mut dist_work_t,
        n: usize,
        index: *mut usize,
    ) -> dist_status_t {
        let out = OutPtr::required(index, "index")?;
        out.write(n);
        let works = read_works(works, n)?;
        write_found_index(work_list::test_any(&works), &works, &out)
    }
}
