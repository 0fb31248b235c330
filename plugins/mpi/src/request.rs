//! Operations under way: how they are looked at, waited for, and taken back.

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

/// What `submit` hands out.
#[derive(Debug)]
pub(crate) enum Request {
    Collective(Collective),
    Send(Sending),
    Receive(Receive),
}

/// What becomes of memory that MPI may still use.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    Back,
    /// Not yet: why.
    Kept(&'static str),
}

/// How many looks there are before whoever waits looks at anything else. A look is nothing but a
/// call of MPI: a large vector goes on in these calls only, thousands of them.
const LOOKS: u32 = 64;
const LOOKS_WHEN_CROWDED: u32 = 8;

/// Of so many elements, an operation that the first looks have found ended has taken some ten
/// microseconds at most. None are those with blocks of all lengths.
const SHORT: RangeInclusive<usize> = 1..=1024;

/// For how long it does nothing but look; from then on it sleeps in between.
const EAGER: Duration = Duration::from_millis(5);
const FIRST_NAP: Duration = Duration::from_micros(20);
const LONGEST_NAP: Duration = Duration::from_micros(500);

/// How often somebody who sleeps asks whether another rank has ended the group.
const QUESTION: Duration = Duration::from_millis(100);

impl Request {
    /// Whether it has ended.
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
            // The thread that may look is the one that waits.
            return Ok(false);
        }
        let _entered = process::enter()?;
        self.look_inside(part, outcome)
    }

    /// The same, where MPI may be called.
    #[inline]
    fn look_inside(&mut self, part: &Part, outcome: *mut dist_backend_outcome_t) -> Result<bool> {
        match self {
            Self::Collective(collective) => collective.look(part),
            Self::Send(sending) => sending.look(),
            Self::Receive(receive) => receive.look(part, outcome),
        }
    }

    /// Waits, as long as it may.
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

    /// The same for a collective that has just begun; says where it took a moment only.
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
            // SAFETY: the library's, for the time of the call; one that has run has room for this.
            if let Some(outcome) = unsafe { outcome.as_mut() } {
                outcome.flags = u64::from(DIST_BACKEND_SHORT.cast_unsigned());
            }
        }
        Ok(DIST_OK)
    }

    /// Looks, until it has ended or it is time to look at something else.
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

    /// Takes it back.
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
                // Whatever of this crate's MPI may still use is never freed.
                part.lingers();
                std::mem::forget(self);
                Err(Failure::new(DIST_ERR_BACKEND, reason))
            }
        }
    }
}

/// Between two looks: a look at MPI takes long enough by itself, where nobody else needs the
/// processor.
fn pause(part: &Part) {
    if part.is_crowded {
        std::thread::yield_now();
    }
}
