//! The monitored barrier: a barrier that names the missing ranks and does not fail the group.

use super::args::{OutPtr, timeout, to_i32};
use super::group::group;
use super::types::*;
use crate::api::collective::batch;
use crate::base::deadline::Timeout;
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use std::time::Duration;

/// The caller's array for the missing ranks, its capacity, and the output for their number.
#[derive(Debug)]
struct MissingRanksOut {
    list: *mut i32,
    capacity: usize,
    count: Option<OutPtr<usize>>,
}

impl MissingRanksOut {
    fn new(list: *mut i32, count: *mut usize) -> Result<Self> {
        if count.is_null() {
            return match list.is_null() {
                true => Ok(Self { list, capacity: 0, count: None }),
                false => Err(Error::invalid("missing needs n_missing, the length of the list")),
            };
        }
        // SAFETY: not NULL, and the caller promises a readable size_t.
        let capacity = unsafe { count.read() };
        let count = OutPtr::optional(count);
        count.iter().for_each(|count| count.write(0));
        Ok(Self { list, capacity: if list.is_null() { 0 } else { capacity }, count })
    }

    fn write(&self, ranks: &[Rank]) -> Result<()> {
        for (i, &rank) in ranks.iter().take(self.capacity).enumerate() {
            // SAFETY: the caller promises `capacity` elements.
            unsafe { self.list.wrapping_add(i).write(to_i32(rank)?) };
        }
        self.count.iter().for_each(|count| count.write(ranks.len()));
        Ok(())
    }
}

dist_export! {
    /// Waits until all ranks have called this barrier, or names the ranks that have not.
    ///
    /// Rank 0 waits for the other ranks until the time-out and sends the result to all ranks. The
    /// other ranks wait for this result 500 ms longer than the time-out; with DIST_NO_WAIT, they do
    /// not wait longer. If no result arrives, they report rank 0 as missing.
    ///
    /// A missing rank fails this barrier only, not the group. A rank that has left or died counts
    /// as missing immediately. A rank that calls too late immediately gets the result of the failed
    /// barrier. The next barrier is then a new one for all ranks. The order of monitored barriers
    /// and collectives may differ between ranks.
    ///
    /// @param group in: the group.
    /// @param timeout_ms in: the time-out; the default is the group's. With DIST_NO_WAIT, only
    ///   ranks that have already called count as present.
    /// @param wait_all_ranks in: 0 to return as soon as one rank is known to be missing, and to
    ///   name only this rank. Any other number to wait for all ranks until the time-out, and to
    ///   name all missing ranks.
    /// @param missing out, optional: the missing ranks, in ascending order; needs `n_missing`.
    /// @param n_missing in, out, optional: in, the number of ranks that fit into `missing` (the
    ///   group's size always suffices). Out, the number of missing ranks.
    /// @agree the number of calls, `timeout_ms` and `wait_all_ranks`.
    /// @blocks Until the result is known, but at most until about 1 second after the time-out.
    /// @return DIST_OK if all ranks have called. If ranks are missing, all ranks get
    ///   DIST_ERR_PEER_FAILED if one of the missing ranks has left or died, otherwise
    ///   DIST_ERR_TIMEOUT; the message names the missing ranks. DIST_ERR_INVALID_ARGUMENT if an
    ///   argument is wrong, inside a completion callback, inside a batch, or if another thread is
    ///   in this barrier on the group; DIST_ERR_UNSUPPORTED if the back end has no messages;
    ///   DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED; the group's error if the group has
    ///   failed.
    /// @threads Any thread may call this, but only one at a time for each rank and group.
    /// @since 0.1
    pub fn dist_monitored_barrier(
        group: *mut dist_group_t,
        timeout_ms: i64,
        wait_all_ranks: i32,
        missing: *mut i32,
        n_missing: *mut usize,
    ) -> dist_status_t {
        let missing = MissingRanksOut::new(missing, n_missing)?;
        let timeout = match timeout(timeout_ms, "timeout_ms")? {
            Timeout::Default => None,
            given => Some(Duration::from_millis(given.ms_or(0))),
        };
        let group = self::group(group)?;
        if batch::is_open() {
            let message = "a monitored barrier blocks, and cannot be called inside a batch";
            return Err(Error::invalid(message));
        }
        group.monitored_barrier(timeout, wait_all_ranks != 0).or_else(|failed| {
            missing.write(&failed.missing)?;
            Err(failed.error)
        })
    }
}
