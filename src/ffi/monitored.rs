//! The barrier that names who does not come.

use super::args::{Out, number, timeout};
use super::group::group;
use super::types::*;
use crate::api::batch;
use crate::base::deadline::Timeout;
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use std::time::Duration;

/// The caller's list of missing ranks: the array, its capacity, and where their number goes.
#[derive(Debug)]
struct Missing {
    list: *mut i32,
    capacity: usize,
    count: Option<Out<usize>>,
}

impl Missing {
    fn new(list: *mut i32, count: *mut usize) -> Result<Self> {
        if count.is_null() {
            return match list.is_null() {
                true => Ok(Self { list, capacity: 0, count: None }),
                false => Err(Error::invalid("missing needs n_missing, which says how long it is")),
            };
        }
        // SAFETY: not NULL, and the caller promises a readable size_t.
        let room = unsafe { count.read() };
        let count = Out::optional(count);
        count.iter().for_each(|count| count.write(0));
        Ok(Self { list, capacity: if list.is_null() { 0 } else { room }, count })
    }

    fn write(&self, ranks: &[Rank]) -> Result<()> {
        for (i, &rank) in ranks.iter().take(self.capacity).enumerate() {
            // SAFETY: the caller promises `capacity` elements.
            unsafe { self.list.wrapping_add(i).write(number(rank)?) };
        }
        self.count.iter().for_each(|count| count.write(ranks.len()));
        Ok(())
    }
}

dist_export! {
    /// Waits until all ranks have called it, and says who has not.
    ///
    /// All ranks must call it equally often; it has no order with collectives, and fails neither the group nor anything
    /// else. `group`: required. `timeout_ms`: how long to wait, the same on all ranks; the default is
    /// the group's. With DIST_NO_WAIT, only who is there already counts. Rank 0 waits so long, and tells the
    /// others, which wait for its word half a second longer (with DIST_NO_WAIT not at all). `wait_all_ranks`: 0: it ends
    /// as soon as one rank is known to be missing, and names the first one; else it waits for all until the deadline and
    /// names all that are missing. `missing`: out, may be NULL, which needs `n_missing`; the ranks that did not come, in
    /// rank order. `n_missing`: in and out, may be NULL; in: how many elements `missing` has room for (the group's size
    /// is always enough), out: how many ranks were missing, of which those that have room are in `missing`.
    ///
    /// A rank that has left or died is missing at once. Where rank 0 itself does not come, the others say so. A rank that
    /// comes late learns at once that this barrier has failed, and who was missing; the next one is a new one for all. It
    /// blocks, and cannot be a part of a batch. Any thread; of one rank and group one at a time.
    ///
    /// Returns DIST_OK; DIST_ERR_TIMEOUT for ranks that did not come, DIST_ERR_PEER_FAILED where one of those has left
    /// or died, on all ranks, with their names in the message; DIST_ERR_INVALID_ARGUMENT (also inside a completion
    /// callback or a batch, and where another thread is in one), DIST_ERR_INVALID_HANDLE, DIST_ERR_NOT_INITIALIZED,
    /// DIST_ERR_UNSUPPORTED (the group's back end has no messages); the group's failure. Since 0.1.
    pub fn dist_monitored_barrier(
        group: *mut dist_group_t,
        timeout_ms: i64,
        wait_all_ranks: i32,
        missing: *mut i32,
        n_missing: *mut usize,
    ) -> dist_status_t {
        let missing = Missing::new(missing, n_missing)?;
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
