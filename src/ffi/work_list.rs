//! Waiting for several works at once.

use super::args::{Out, slice, wait_limit};
use super::last_error;
use super::types::*;
use super::work::WORKS;
use crate::api::work_list::{self, AnyDone, WorkList};
use crate::api::{Progress, Work};
use crate::base::error::{Context as _, Result};
use std::sync::Arc;

/// The works of a caller's list; `None` for NULL.
fn list(works: *const *mut dist_work_t, n: usize) -> Result<Vec<Option<Arc<Work>>>> {
    let work = |(place, handle): (usize, &*mut dist_work_t)| match handle.is_null() {
        true => Ok(None),
        false => WORKS.get(*handle).map(Some).context(|| format!("works[{place}]")),
    };
    slice(works, n, "works")?.iter().enumerate().map(work).collect()
}

/// Notes where in the program the failed work was issued.
fn note_origin(works: &WorkList, place: usize) {
    if let Some(Some(work)) = works.get(place) {
        last_error::issued_at(work.issued_at());
    }
}

/// Tells what was found, with the outcome of the work that is done.
fn tell(found: AnyDone, works: &WorkList, out: &Out<usize>) -> Result<Progress> {
    match found {
        AnyDone::At(place, outcome) => {
            out.write(place);
            outcome.inspect_err(|_| note_origin(works, place)).map(|()| Progress::Done)
        }
        AnyDone::Pending => Ok(Progress::Pending),
        AnyDone::NoWorks => Ok(Progress::Done),
    }
}

dist_export! {
    #[in_progress]
    /// Waits until all works of a list are done.
    ///
    /// The thread may run operations of the works' groups until then. All that dist_work_wait says of buffers and of
    /// repeated waits holds for each of them.
    ///
    /// @param works in: `n` works of any groups, NULL among them is skipped; borrowed for the call; NULL only if `n` is 0.
    /// @param n in: the length of the list.
    /// @param timeout_ms in: for all of them together; 0 until the operations' own deadlines, DIST_NO_WAIT,
    ///   DIST_WAIT_FOREVER.
    /// @agree nothing.
    /// @blocks until all are done, until the time-out at the latest.
    /// @return DIST_OK; DIST_IN_PROGRESS if the time was over first; once all are done, the first error in the order of
    ///   the list, whose message begins with its place; DIST_ERR_INVALID_HANDLE with the place of a wrong handle;
    ///   DIST_ERR_INVALID_ARGUMENT for a wrong time, works whose batch has not ended, and pending ones inside a completion
    ///   callback.
    /// @threads any; several threads may wait for the same works.
    /// @since 0.1
    pub fn dist_work_wait_all(
        works: *const *mut dist_work_t,
        n: usize,
        timeout_ms: i64,
    ) -> dist_status_t {
        let works = list(works, n)?;
        let limit = wait_limit(timeout_ms, "timeout_ms")?;
        work_list::wait_all(&works, &limit).inspect_err(|_| {
            let failed = |work: &Option<Arc<Work>>| {
                work.as_ref().is_some_and(|work| work.outcome().is_some_and(|it| it.is_err()))
            };
            works.iter().position(failed).into_iter().for_each(|place| note_origin(&works, place));
        })
    }
}

dist_export! {
    #[in_progress]
    /// Waits until a work of a list is done.
    ///
    /// If several are, it takes the first in the list. To wait for the next one, put NULL in its place.
    ///
    /// @param works in: as in dist_work_wait_all.
    /// @param n in: the length of the list.
    /// @param timeout_ms in: as in dist_work_wait_all.
    /// @param index out: the place of the work that is done; `n` if there is none.
    /// @agree nothing.
    /// @blocks until one is done, until the time-out at the latest.
    /// @return DIST_OK, also if all entries are NULL; the error of the work at `index`; DIST_IN_PROGRESS if the time was
    ///   over first; DIST_ERR_INVALID_HANDLE and DIST_ERR_INVALID_ARGUMENT as dist_work_wait_all, with `n` in `index`.
    /// @threads any; several threads may wait for the same works.
    /// @since 0.1
    pub fn dist_work_wait_any(
        works: *const *mut dist_work_t,
        n: usize,
        timeout_ms: i64,
        index: *mut usize,
    ) -> dist_status_t {
        let out = Out::required(index, "index")?;
        out.write(n);
        let works = list(works, n)?;
        let found = work_list::wait_any(&works, &wait_limit(timeout_ms, "timeout_ms")?)?;
        tell(found, &works, &out)
    }
}

dist_export! {
    #[in_progress]
    /// Looks whether a work of a list is done.
    ///
    /// @param works in: as in dist_work_wait_all.
    /// @param n in: the length of the list.
    /// @param index out: as in dist_work_wait_any.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK, also if all entries are NULL; the error of the work at `index`; DIST_IN_PROGRESS if none is done;
    ///   DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if `index` is NULL.
    /// @threads any.
    /// @since 0.1
    pub fn dist_work_test_any(
        works: *const *mut dist_work_t,
        n: usize,
        index: *mut usize,
    ) -> dist_status_t {
        let out = Out::required(index, "index")?;
        out.write(n);
        let works = list(works, n)?;
        tell(work_list::test_any(&works), &works, &out)
    }
}
