//! Pending operations: polling, waiting and cancelling.

use crate::collective::Collective;
use crate::failure::{Failure, Result};
use crate::interface::{
    DIST_BACKEND_SHORT, DIST_ERR_BACKEND, DIST_IN_PROGRESS, DIST_OK, dist_backend_operation_t,
    dist_backend_outcome_t, dist_status_t,
};
use crate::messages::{Receive, Sending};
use crate::part::Part;
use crate::process;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

/// The request that `submit` returns.
#[derive(Debug)]
pub(crate) enum Request {
    Collective(Collective),
    Send(Sending),
    Receive(Receive),
}

/// The outcome of a cancellation: whether MPI may still use the memory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    Back,
    /// MPI may still use the memory, for this reason.
    Kept(&'static str),
}

/// The number of polls before a waiter checks any other condition. A poll is only a call of MPI: a
/// large vector makes progress only in these calls, and needs thousands of them.
const LOOKS: u32 = 64;
const LOOKS_WHEN_CROWDED: u32 = 8;

/// The element counts of short operations: if the first polls find such an operation complete, it
/// took about 10 microseconds at most. `_v` forms have count 0 and are not included.
const SHORT: RangeInclusive<usize> = 1..=1024;

/// The time that a waiter polls without sleeping.
const EAGER: Duration = Duration::from_millis(5);
const FIRST_NAP: Duration = Duration::from_micros(20);
const LONGEST_NAP: Duration = Duration::from_micros(500);

/// The interval at which a sleeping waiter queries whether another rank has aborted the group.
const QUESTION: Duration = Duration::from_millis(100);

impl Request {
    /// Polls; returns true if the operation is complete.
    #[inline]
    pub(crate) fn look(
        &mut self,
        part: &Part,
        outcome: *mut dist_backend_outcome_t,
    ) -> Result<bool> {
        if process::is_free() {
            return self.look_inside(part, outcome);
        }
        if process::known().is_some_and(|process| !process.admits_thread()) {
            // The thread that may call MPI polls when it waits.
            return Ok(false);
        }
        let _entered = process::enter()?;
        self.look_inside(part, outcome)
    }

    /// As `look`; the caller has the right to call MPI.
    #[inline]
    fn look_inside(&mut self, part: &Part, outcome: *mut dist_backend_outcome_t) -> Result<bool> {
        match self {
            Self::Collective(collective) => collective.look(part),
            Self::Send(sending) => sending.look(),
            Self::Receive(receive) => receive.look(part, outcome),
        }
    }

    /// Waits for at most the limit.
    pub(crate) fn wait(
        &mut self,
        part: &Part,
        limit: Duration,
        outcome: *mut dist_backend_outcome_t,
    ) -> Result<dist_status_t> {
        if self.look_often(part, outcome)? {
            return Ok(DIST_OK);
        }
        self.wait_longer(part, limit, outcome)
    }

    /// As `wait`, for a collective that has just begun. Reports a short operation in the outcome.
    pub(crate) fn run(
        &mut self,
        part: &Part,
        operation: &dist_backend_operation_t,
        limit: Duration,
        outcome: *mut dist_backend_outcome_t,
    ) -> Result<dist_status_t> {
        if !self.look_often(part, outcome)? {
            return self.wait_longer(part, limit, outcome);
        }
        if SHORT.contains(&operation.count) && !part.is_crowded {
            // SAFETY: the library's struct, valid during the call; the version with `run` has this
            // field.
            if let Some(outcome) = unsafe { outcome.as_mut() } {
                outcome.flags = u64::from(DIST_BACKEND_SHORT.cast_unsigned());
            }
        }
        Ok(DIST_OK)
    }

    /// Polls for a fixed number of times; returns true if the operation is complete.
    fn look_often(&mut self, part: &Part, outcome: *mut dist_backend_outcome_t) -> Result<bool> {
        let looks = if part.is_crowded { LOOKS_WHEN_CROWDED } else { LOOKS };
        for _ in 0..looks {
            if self.look(part, outcome)? {
                return Ok(true);
            }
            pause(part);
        }
        Ok(false)
    }

    #[cold]
    fn wait_longer(
        &mut self,
        part: &Part,
        limit: Duration,
        outcome: *mut dist_backend_outcome_t,
    ) -> Result<dist_status_t> {
        let began = Instant::now();
        let mut asked = began;
        let mut nap = FIRST_NAP;
        loop {
            if self.look_often(part, outcome)? {
                return Ok(DIST_OK);
            }
            let waited = began.elapsed();
            if waited >= limit || part.host.is_aborted() {
                return Ok(DIST_IN_PROGRESS);
            }
            if waited < EAGER {
                continue;
            }
            if asked.elapsed() >= QUESTION {
                asked = Instant::now();
                if part.failure().is_some() {
                    return Ok(DIST_IN_PROGRESS); // The library asks why.
                }
            }
            std::thread::sleep(nap.min(limit - waited));
            nap = (nap * 2).min(LONGEST_NAP);
        }
    }

    /// Cancels the operation.
    pub(crate) fn release(mut self, part: &Part) -> Result<()> {
        let entered = process::enter();
        let taken = match (&mut self, &entered) {
            (_, Err(_)) => Taken::Kept("this thread may not call MPI"),
            (Self::Collective(collective), _) => collective.cancel()?,
            (Self::Send(sending), _) => sending.cancel(),
            (Self::Receive(receive), _) => receive.cancel(part),
        };
        match taken {
            Taken::Back => Ok(()),
            Taken::Kept(reason) => {
                // Memory of this plug-in that MPI may still use is never freed.
                part.lingers();
                std::mem::forget(self);
                Err(Failure::new(DIST_ERR_BACKEND, reason))
            }
        }
    }
}

/// Runs between two polls. It yields only if other ranks need the processor: a poll of MPI takes
/// long enough by itself.
fn pause(part: &Part) {
    if part.is_crowded {
        std::thread::yield_now();
    }
}
