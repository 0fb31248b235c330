//! How a rank waits for others in a step: for how long, what it looks at meanwhile, and what ends
//! that early.

use super::{GRACE, Steps};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use crate::transport::line::Line;
use crate::transport::pulse::PARTING;
use crate::wait::watch::Watch;
use crate::wait::{Interrupt, Pace, until, until_watched};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// How long a wait for a finished step sleeps before it looks again without having been rung: at
/// first, and at most.
const FIRST_SLICE: Duration = Duration::from_millis(5);
const LAST_SLICE: Duration = Duration::from_millis(100);

/// After how many looks in a tight loop, some tens of microseconds, a wait is long enough to look
/// who else is late.
const SHORT_LOOKS: u32 = 1000;

impl Steps<'_> {
    /// [`Steps::await_rank`] where its line has not come.
    pub(super) fn await_line(&self, rank: Rank, line: &Line) -> Result<()> {
        let step = self.hand.lane.step;
        let began = self.lateness.wait_begins();
        let looks = Cell::new(self.short_looks());
        let ready = || if line.step() >= step { Some(()) } else { self.looked_in_vain(&looks) };
        self.wait_for(rank, ready, |other| self.hand.has_published(other))?;
        self.ends_waiting(began, rank);
        Ok(())
    }

    /// [`Steps::await_done`] where that is not known yet.
    pub(super) fn look_who_is_done(&mut self, step: u64) -> Result<()> {
        for rank in self.others() {
            if self.hand.lane.done[rank] >= step {
                continue;
            }
            let progress = |rank| self.hand.region.progress(rank).done();
            let ready = || Some(progress(rank)).filter(|&done| done >= step);
            let arrived = |other| progress(other) >= step;
            let began = self.lateness.wait_begins();
            let looks = Cell::new(self.short_looks());
            self.doze_until(rank, &|| ready().or_else(|| self.looked_in_vain(&looks)), &arrived);
            self.hand.lane.done[rank] = self.wait_for(rank, ready, arrived)?;
            self.ends_waiting(began, rank);
        }
        let all = self.others().map(|rank| self.hand.lane.done[rank]).min();
        self.hand.lane.all_done = all.unwrap_or(step);
        Ok(())
    }

    /// After how many looks a wait is long.
    fn short_looks(&self) -> u32 {
        if self.hand.domain.pace().crowded { 1 } else { SHORT_LOOKS }
    }

    /// A look in a wait found nothing; once there have been as many as were `left`, this rank looks
    /// who else is late.
    fn looked_in_vain<T>(&self, left: &Cell<u32>) -> Option<T> {
        match left.get() {
            0 => self.look_around(None),
            looks => left.set(looks - 1),
        }
        None
    }

    /// Looks who has come into the operation; whoever was `awaited` has, or is past what it was
    /// awaited for.
    fn look_around(&self, awaited: Option<Rank>) {
        let (region, moment) = (self.hand.region, self.operation.descriptor.moment());
        let has_come = |rank| awaited == Some(rank) || region.progress(rank).has_entered(moment);
        let blame = |rank, by| (self.hand.domain.peer(rank).rank, by);
        // All are noted at the first look.
        let news = if self.lateness.is_long() { 0 } else { self.size() };
        self.lateness.look(self.others().take(news), has_come, blame);
    }

    fn ends_waiting(&self, began: Option<Instant>, rank: Rank) {
        if self.lateness.is_long() {
            self.look_around(Some(rank));
        }
        self.lateness.wait_ends(began, self.hand.domain.peer(rank).rank);
    }

    /// Waits in slices, since no ring follows a step that is finished silently; ends also for any
    /// reason for which [`Steps::wait_for`] ends at once.
    fn doze_until(
        &self,
        rank: Rank,
        ready: &impl Fn() -> Option<u64>,
        arrived: &impl Fn(Rank) -> bool,
    ) {
        self.begins();
        if self.look_in_turns(ready, arrived).is_some() {
            return;
        }
        let (bell, deadline) = (self.hand.region.bell(self.hand.rank), self.operation.deadline());
        let halted = || self.halted(rank);
        let mut pace = self.hand.domain.pace();
        let (mut slice, mut watch) = (FIRST_SLICE, Watch::default());
        while !deadline.has_passed() {
            match until(bell, pace, &deadline.capped(slice), halted, ready) {
                Err(Interrupt::Deadline) => {}
                Ok(_) | Err(Interrupt::Halted(_)) => break,
            }
            watch.look(|lasted| self.tell(lasted, arrived));
            pace = Pace::PATIENT;
            slice = (2 * slice).min(LAST_SLICE);
        }
    }

    /// Waits for one rank; `arrived` tells, for messages, which ranks have what this one waits for.
    fn wait_for<T>(
        &self,
        rank: Rank,
        mut ready: impl FnMut() -> Option<T>,
        arrived: impl Fn(Rank) -> bool,
    ) -> Result<T> {
        self.begins();
        if let Some(value) = self.look_in_turns(&mut ready, &arrived) {
            return Ok(value);
        }
        let bell = self.hand.region.bell(self.hand.rank);
        let halted = || self.halted(rank);
        let (pace, deadline) = (self.hand.domain.pace(), self.operation.deadline());
        let mut watch = Watch::default();
        let told = || watch.look(|lasted| self.tell(lasted, &arrived));
        match until_watched(bell, pace, deadline, halted, &mut ready, told) {
            Ok(value) => Ok(value),
            Err(Interrupt::Halted(error)) => Err(self.fail(self.better_reason(rank, error))),
            Err(Interrupt::Deadline) => match self.defer(&mut ready, &arrived) {
                Some(outcome) => outcome,
                None => Err(self.fail(self.late(arrived))),
            },
        }
    }

    /// Where ranks have no core each, gives this rank's to the others of it who have not `arrived`,
    /// a few times, and looks.
    fn look_in_turns<T>(
        &self,
        mut ready: impl FnMut() -> Option<T>,
        arrived: impl Fn(Rank) -> bool,
    ) -> Option<T> {
        if !self.is_crowded() {
            return None;
        }
        ready().or_else(|| self.hand.give_turns(ready, arrived))
    }

    /// Where every rank that is missing is in an operation of the group, it waits itself, and the
    /// late one is on another node or late for an earlier operation: those who can name it speak
    /// first.
    fn defer<T>(
        &self,
        ready: &mut impl FnMut() -> Option<T>,
        arrived: &impl Fn(Rank) -> bool,
    ) -> Option<Result<T>> {
        let region = self.hand.region;
        let is_inside = |rank: Rank| arrived(rank) || region.progress(rank).is_inside();
        // Graces of several waits do not add up.
        let deadline = self.operation.deadline();
        let grace = (deadline.allowed() + self.grace).saturating_sub(deadline.elapsed());
        if grace.is_zero() || !self.others().all(is_inside) {
            return None;
        }
        let bell = region.bell(self.hand.rank);
        let halted = || self.hand.domain.failure();
        match until(bell, Pace::PATIENT, &Deadline::after(grace), halted, ready) {
            Ok(value) => Some(Ok(value)),
            Err(Interrupt::Halted(error)) => Some(Err(error)),
            Err(Interrupt::Deadline) => None,
        }
    }

    /// Where there are several nodes, a rank that has left may have done so because of a failure on
    /// another one, of which this rank has not heard yet.
    #[cold]
    fn better_reason(&self, rank: Rank, error: Error) -> Error {
        let domain = self.hand.domain;
        if self.grace <= GRACE || !domain.has_left(rank) {
            return error;
        }
        let bell = self.hand.region.bell(self.hand.rank);
        let heard = || domain.failure();
        until(bell, Pace::PATIENT, &Deadline::after(PARTING), || None, heard).unwrap_or(error)
    }

    /// Fails the domain; the error to return is the first one that anybody has reported.
    pub(in crate::algo::shared) fn fail(&self, error: Error) -> Error {
        self.hand.domain.fail(&error);
        self.hand.domain.failure().unwrap_or(error)
    }

    /// Why a wait for a rank is in vain.
    fn halted(&self, rank: Rank) -> Option<Error> {
        let failure = self.hand.domain.failure();
        failure.or_else(|| self.departed(rank)).or_else(|| self.parted(rank))
    }

    /// Whether the newest that a rank has published differs from what this rank has.
    fn parted(&self, rank: Rank) -> Option<Error> {
        let done = self.hand.region.progress(rank).done();
        let newest = done.max(1)..=done + 1;
        newest.rev().any(|step| self.differs(rank, step)).then(|| self.mismatch(rank))
    }
}
