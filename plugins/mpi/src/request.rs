//! Operations under way: how they are looked at, waited for, and taken back.

use crate::collective::Collective;
use crate::failure::{Failure, Result};
use crate::interface::{
    DIST_ERR_BACKEND, DIST_IN_PROGRESS, DIST_OK, dist_backend_outcome_t, dist_status_t,
};
use crate::messages::{Receive, Sending};
use crate::part::Part;
use crate::process;
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

/// How many looks there are before whoever waits looks at anything else.
const LOOKS: u32 = 64;
const LOOKS_WHEN_CROWDED: u32 = 8;

/// For how long it does nothing but look; from then on it sleeps in between.
const EAGER: Duration = Duration::from_millis(5);
const FIRST_NAP: Duration = Duration::from_micros(20);
const LONGEST_NAP: Duration = Duration::from_micros(500);

/// How often somebody who sleeps asks whether another rank has ended the group.
const QUESTION: Duration = Duration::from_millis(100);

impl Request {
    /// Whether it has ended.
    pub(crate) fn look(
        &mut self,
        part: &Part,
        outcome: *mut dist_backend_outcome_t,
    ) -> Result<bool> {
        if process::known().is_some_and(|process| !process.admits_thread()) {
            // The thread that may look is the one that waits.
            return Ok(false);
        }
        let _entered = process::enter()?;
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
        let looks = if part.is_crowded { LOOKS_WHEN_CROWDED } else { LOOKS };
        for _ in 0..looks {
            if self.look(part, outcome)? {
                return Ok(DIST_OK);
            }
            pause(part);
        }
        self.wait_longer(part, limit, outcome)
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
            for _ in 0..LOOKS_WHEN_CROWDED {
                if self.look(part, outcome)? {
                    return Ok(DIST_OK);
                }
                pause(part);
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

/// Between two looks: a look at MPI takes long enough by itself, where nobody else needs the processor.
fn pause(part: &Part) {
    if part.is_crowded {
        std::thread::yield_now();
    }
}
