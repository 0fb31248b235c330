//! Pending operations: polling, waiting and cancelling.

use crate::collective::Collective;
use crate::failure::{Failure, Result};
use crate::group::MpiGroup;
use crate::interface::{
    DIST_BACKEND_SHORT, DIST_ERR_BACKEND, DIST_IN_PROGRESS, DIST_OK, dist_backend_operation_t,
    dist_backend_outcome_t, dist_status_t,
};
use crate::messages::{ReceiveOperation, SendOperation};
use crate::process;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

/// The request that `submit` returns.
#[derive(Debug)]
pub(crate) enum Request {
    Collective(Collective),
    Send(SendOperation),
    Receive(ReceiveOperation),
}

/// The outcome of a cancellation: whether MPI may still use the memory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CancelOutcome {
    Released,
    /// MPI may still use the memory, for this reason.
    InUse(&'static str),
}

/// The number of polls before a waiter checks any other condition. A poll is only a call of MPI: a
/// large vector makes progress only in these calls, and needs thousands of them.
const POLLS: u32 = 64;
const POLLS_WHEN_OVERSUBSCRIBED: u32 = 8;

/// The element counts of short operations: if the first polls find such an operation complete, it
/// took about 10 microseconds at most. `_v` forms have count 0 and are not included.
const SHORT: RangeInclusive<usize> = 1..=1024;

/// The time that a waiter polls without sleeping.
const POLL_TIME: Duration = Duration::from_millis(5);
const MIN_SLEEP: Duration = Duration::from_micros(20);
const MAX_SLEEP: Duration = Duration::from_micros(500);

/// The interval at which a sleeping waiter queries whether another rank has aborted the group.
const ABORT_QUERY_INTERVAL: Duration = Duration::from_millis(100);

impl Request {
    /// Polls; returns true if the operation is complete.
    #[inline]
    pub(crate) fn poll(
        &mut self,
        group: &MpiGroup,
        outcome: *mut dist_backend_outcome_t,
    ) -> Result<bool> {
        if process::allows_any_thread() {
            return self.poll_with_access(group, outcome);
        }
        if process::get().is_some_and(|process| !process.allows_thread()) {
            // The thread that may call MPI polls when it waits.
            return Ok(false);
        }
        let _access = process::acquire()?;
        self.poll_with_access(group, outcome)
    }

    /// As `poll`; the caller has the right to call MPI.
    #[inline]
    fn poll_with_access(
        &mut self,
        group: &MpiGroup,
        outcome: *mut dist_backend_outcome_t,
    ) -> Result<bool> {
        match self {
            Self::Collective(collective) => collective.poll(group),
            Self::Send(sending) => sending.poll(),
            Self::Receive(receive) => receive.poll(group, outcome),
        }
    }

    /// Waits for at most the limit.
    pub(crate) fn wait(
        &mut self,
        group: &MpiGroup,
        limit: Duration,
        outcome: *mut dist_backend_outcome_t,
    ) -> Result<dist_status_t> {
        if self.poll_repeatedly(group, outcome)? {
            return Ok(DIST_OK);
        }
        self.wait_longer(group, limit, outcome)
    }

    /// As `wait`, for a collective that has just begun. Reports a short operation in the outcome.
    pub(crate) fn run(
        &mut self,
        group: &MpiGroup,
        operation: &dist_backend_operation_t,
        limit: Duration,
        outcome: *mut dist_backend_outcome_t,
    ) -> Result<dist_status_t> {
        if !self.poll_repeatedly(group, outcome)? {
            return self.wait_longer(group, limit, outcome);
        }
        if SHORT.contains(&operation.count) && !group.is_oversubscribed {
            // SAFETY: the library's struct, valid during the call; the version with `run` has this
            // field.
            if let Some(outcome) = unsafe { outcome.as_mut() } {
                outcome.flags = u64::from(DIST_BACKEND_SHORT.cast_unsigned());
            }
        }
        Ok(DIST_OK)
    }

    /// Polls for a fixed number of times; returns true if the operation is complete.
    fn poll_repeatedly(
        &mut self,
        group: &MpiGroup,
        outcome: *mut dist_backend_outcome_t,
    ) -> Result<bool> {
        let polls = if group.is_oversubscribed { POLLS_WHEN_OVERSUBSCRIBED } else { POLLS };
        for _ in 0..polls {
            if self.poll(group, outcome)? {
                return Ok(true);
            }
            pause(group);
        }
        Ok(false)
    }

    #[cold]
    fn wait_longer(
        &mut self,
        group: &MpiGroup,
        limit: Duration,
        outcome: *mut dist_backend_outcome_t,
    ) -> Result<dist_status_t> {
        let start = Instant::now();
        let mut last_query = start;
        let mut sleep_time = MIN_SLEEP;
        loop {
            if self.poll_repeatedly(group, outcome)? {
                return Ok(DIST_OK);
            }
            let waited = start.elapsed();
            if waited >= limit || group.host.is_aborted() {
                return Ok(DIST_IN_PROGRESS);
            }
            if waited < POLL_TIME {
                continue;
            }
            if last_query.elapsed() >= ABORT_QUERY_INTERVAL {
                last_query = Instant::now();
                if group.failure().is_some() {
                    return Ok(DIST_IN_PROGRESS); // The library asks why.
                }
            }
            std::thread::sleep(sleep_time.min(limit - waited));
            sleep_time = (sleep_time * 2).min(MAX_SLEEP);
        }
    }

    /// Cancels the operation.
    pub(crate) fn release(mut self, group: &MpiGroup) -> Result<()> {
        let access = process::acquire();
        let outcome = match (&mut self, &access) {
            (_, Err(_)) => CancelOutcome::InUse("this thread may not call MPI"),
            (Self::Collective(collective), _) => collective.cancel()?,
            (Self::Send(sending), _) => sending.cancel(),
            (Self::Receive(receive), _) => receive.cancel(group),
        };
        match outcome {
            CancelOutcome::Released => Ok(()),
            CancelOutcome::InUse(reason) => {
                // Memory of this plug-in that MPI may still use is never freed.
                group.record_request_in_use();
                std::mem::forget(self);
                Err(Failure::new(DIST_ERR_BACKEND, reason))
            }
        }
    }
}

/// Runs between two polls. It yields only if other ranks need the processor: a poll of MPI takes
/// long enough by itself.
fn pause(group: &MpiGroup) {
    if group.is_oversubscribed {
        std::thread::yield_now();
    }
}
