//! The count of the outstanding works of a group, and its maximum.

use super::RunQueue;
use crate::api::work::callbacks;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::sync::Ordering;
use crate::wait::{WaitPolicy, wait_until};

/// The maximum number of outstanding works of a group.
pub const MAX_WORKS: u64 = 65_536;

/// A bit in `outstanding_works`. If it is set, no further work may begin.
const CLOSED: u64 = 1 << 63;

impl RunQueue {
    /// Counts a work as outstanding, before it is issued.
    ///
    /// # Errors
    /// `OutOfMemory` if too many works are outstanding; `NotInitialized` if the queue is closed.
    pub fn begin_work(&self) -> Result<()> {
        self.begin_works(1)
    }

    /// Counts works as outstanding, all or none. If too many works are outstanding, waits until
    /// enough of them have ended. Works end at other times on other ranks, so a rank that refused
    /// its call here would refuse a call that other ranks make.
    ///
    /// # Errors
    /// `OutOfMemory` if too many works are outstanding at the deadline, or immediately inside a
    /// completion callback; `NotInitialized` if the queue is closed.
    pub fn begin_works_within(&self, count: u64, deadline: &Deadline) -> Result<()> {
        loop {
            let refused = match self.begin_works(count) {
                Err(error) if error.kind() == ErrorKind::OutOfMemory => error,
                outcome => return outcome,
            };
            let has_room = || (self.outstanding_works() + count <= MAX_WORKS).then_some(());
            let policy = WaitPolicy::SLEEP_SOON;
            if callbacks::reject_blocking_in_callback("a call with a work").is_err()
                || wait_until(&self.turns.doorbell, policy, deadline, || None, has_room).is_err()
            {
                return Err(refused);
            }
        }
    }

    fn begin_works(&self, count: u64) -> Result<()> {
        let before = self.outstanding_works.fetch_add(count, Ordering::Relaxed);
        if before + count <= MAX_WORKS {
            return Ok(());
        }
        // A thread that waits until no work is outstanding may have seen the increased count, so
        // notify it.
        self.outstanding_works.fetch_sub(count, Ordering::Release);
        self.turns.doorbell.notify();
        if before & CLOSED != 0 {
            let message = "dist_finalize is leaving the group: no further asynchronous operation can be issued";
            return Err(Error::new(ErrorKind::NotInitialized, message));
        }
        let message = format!(
            "{MAX_WORKS} asynchronous operations of the group are outstanding, which is the \
             maximum: wait for some of them first"
        );
        Err(Error::new(ErrorKind::OutOfMemory, message))
    }

    /// Closes the queue: after this call, [`Self::begin_work`] fails.
    pub fn close(&self) {
        self.outstanding_works.fetch_or(CLOSED, Ordering::AcqRel);
    }

    /// Counts a work as outstanding without a check of the maximum.
    pub fn add_work(&self) {
        self.outstanding_works.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes a work from the count of outstanding works, because it has ended or was not issued.
    pub fn end_work(&self) {
        self.outstanding_works.fetch_sub(1, Ordering::Release);
        self.turns.doorbell.notify();
    }

    /// Returns the number of works that were issued and have not ended.
    pub fn outstanding_works(&self) -> u64 {
        self.outstanding_works.load(Ordering::Acquire) & !CLOSED
    }

    /// Waits until all works have ended. Returns false if the limit passes before that.
    pub fn wait_for_works(&self, limit: &Deadline) -> bool {
        let ready = || (self.outstanding_works() == 0).then_some(());
        wait_until(&self.turns.doorbell, WaitPolicy::SLEEP_SOON, limit, || None, ready).is_ok()
    }
}
