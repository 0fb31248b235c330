//! The waits of the sequencer for other ranks in a step: the length of a wait, the polls during the
//! wait, and the reasons that end the wait early.

use super::{NODE_REPORT_GRACE, ShmSequencer};
use crate::algo::awaited_report::AwaitedReport;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use crate::transport::ctrl_slot::CtrlSlot;
use crate::transport::heartbeat::DEPARTURE_GRACE;
use crate::wait::slow_wait::SlowWaitWatch;
use crate::wait::{WaitInterrupt, WaitPolicy, wait_until, wait_until_watched};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// The first sleep of a wait for a finished step. Such a wait may get no wakeup, so the rank sleeps
/// in slices and polls after each slice. Each slice is twice as long as the slice before.
const MIN_SLEEP: Duration = Duration::from_millis(5);
/// The longest sleep of a wait for a finished step.
const MAX_SLEEP: Duration = Duration::from_millis(100);

/// The number of polls in a tight loop after which a wait is long. These polls take some tens of
/// microseconds. In a long wait, the rank checks at each poll which other ranks are late.
const SHORT_WAIT_POLLS: u32 = 1000;

impl ShmSequencer<'_> {
    /// The slow path of [`ShmSequencer::await_rank`]: waits until a rank has published its control
    /// slot.
    pub(super) fn await_ctrl_slot(&self, rank: Rank, slot: &CtrlSlot) -> Result<()> {
        let step = self.shm.cursor.step;
        let wait_start = self.arrival_skew.start_wait();
        let polls_left = Cell::new(self.short_wait_polls());
        let ready =
            || if slot.step() >= step { Some(()) } else { self.count_failed_poll(&polls_left) };
        self.wait_for(rank, ready, |other| self.shm.has_published(other))?;
        self.end_wait(wait_start, rank);
        Ok(())
    }

    /// The slow path of `await_finished`: waits until every other rank has finished `step`.
    pub(super) fn await_finished_slow(&mut self, step: u64) -> Result<()> {
        for rank in self.others() {
            if self.shm.cursor.finished_steps[rank] >= step {
                continue;
            }
            let progress = |rank| self.shm.region.progress(rank).finished_step();
            let ready = || Some(progress(rank)).filter(|&done| done >= step);
            let arrived = |other| progress(other) >= step;
            let wait_start = self.arrival_skew.start_wait();
            let polls_left = Cell::new(self.short_wait_polls());
            self.sleep_until(
                rank,
                &|| ready().or_else(|| self.count_failed_poll(&polls_left)),
                &arrived,
            );
            self.shm.cursor.finished_steps[rank] = self.wait_for(rank, ready, arrived)?;
            self.end_wait(wait_start, rank);
        }
        let all = self.others().map(|rank| self.shm.cursor.finished_steps[rank]).min();
        self.shm.cursor.finished_by_all = all.unwrap_or(step);
        Ok(())
    }

    /// Returns the number of polls after which a wait is long.
    fn short_wait_polls(&self) -> u32 {
        if self.shm.domain.wait_policy().is_oversubscribed { 1 } else { SHORT_WAIT_POLLS }
    }

    /// Counts a failed poll. If no short poll is left, checks which ranks are late.
    fn count_failed_poll<T>(&self, left: &Cell<u32>) -> Option<T> {
        match left.get() {
            0 => self.observe_arrivals(None),
            polls => left.set(polls - 1),
        }
        None
    }

    /// Checks which ranks have entered the operation. If `awaited` is given, this rank has just
    /// finished a wait for that rank, so `awaited` counts as arrived.
    fn observe_arrivals(&self, awaited: Option<Rank>) {
        let (region, order_key) = (self.shm.region, self.operation.descriptor.order_key());
        let has_arrived =
            |rank| awaited == Some(rank) || region.progress(rank).has_entered(order_key);
        let blame = |rank, by| (self.shm.domain.peer(rank).rank, by);
        // The first observation records all ranks that have not arrived.
        let unobserved = if self.arrival_skew.has_long_wait() { 0 } else { self.size() };
        self.arrival_skew.observe_arrivals(self.others().take(unobserved), has_arrived, blame);
    }

    fn end_wait(&self, wait_start: Option<Instant>, rank: Rank) {
        if self.arrival_skew.has_long_wait() {
            self.observe_arrivals(Some(rank));
        }
        self.arrival_skew.end_wait(wait_start, self.shm.domain.peer(rank).rank);
    }

    /// Sleeps until `ready` returns a value, the deadline has passed, or there is another reason to
    /// end the wait. The caller continues with [`ShmSequencer::wait_for`], which handles all three
    /// cases. The sleep is in slices, because a rank that finishes its last step sends no wakeup.
    fn sleep_until(
        &self,
        rank: Rank,
        ready: &impl Fn() -> Option<u64>,
        arrived: &impl Fn(Rank) -> bool,
    ) {
        self.record_start();
        if self.poll_yielding(ready, arrived).is_some() {
            return;
        }
        let (doorbell, deadline) =
            (self.shm.region.doorbell(self.shm.rank), self.operation.deadline());
        let halt_reason = || self.halt_reason(rank);
        let mut policy = self.shm.domain.wait_policy();
        let (mut slice, mut watch) = (MIN_SLEEP, SlowWaitWatch::default());
        let mut report = AwaitedReport::of(self.operation);
        while !deadline.has_passed() {
            match wait_until(doorbell, policy, &deadline.capped(slice), halt_reason, ready) {
                Err(WaitInterrupt::Deadline) => {}
                Ok(_) | Err(WaitInterrupt::Aborted(_)) => break,
            }
            watch.check(|lasted| self.log_long_wait(lasted, arrived));
            report.check(|| vec![self.shm.domain.peer(rank).rank]);
            policy = WaitPolicy::SLEEP_SOON;
            slice = (2 * slice).min(MAX_SLEEP);
        }
    }

    /// Waits for one rank until `ready` returns a value. `arrived` returns whether a rank has
    /// reached the state that this rank waits for; log and error messages use it to name the
    /// missing ranks.
    fn wait_for<T>(
        &self,
        rank: Rank,
        mut ready: impl FnMut() -> Option<T>,
        arrived: impl Fn(Rank) -> bool,
    ) -> Result<T> {
        self.record_start();
        if let Some(value) = self.poll_yielding(&mut ready, &arrived) {
            return Ok(value);
        }
        let doorbell = self.shm.region.doorbell(self.shm.rank);
        let halt_reason = || self.halt_reason(rank);
        let (policy, deadline) = (self.shm.domain.wait_policy(), self.operation.deadline());
        let mut watch = SlowWaitWatch::default();
        let mut report = AwaitedReport::of(self.operation);
        let on_look = || {
            let intervals = [
                watch.check(|lasted| self.log_long_wait(lasted, &arrived)),
                report.check(|| vec![self.shm.domain.peer(rank).rank]),
            ];
            intervals.into_iter().flatten().min()
        };
        match wait_until_watched(doorbell, policy, deadline, halt_reason, &mut ready, on_look) {
            Ok(value) => Ok(value),
            Err(WaitInterrupt::Aborted(error)) => {
                Err(self.fail(self.await_root_failure(rank, error)))
            }
            Err(WaitInterrupt::Deadline) => match self.await_other_reports(&mut ready, &arrived) {
                Some(outcome) => outcome,
                None => Err(self.fail(self.timeout_error(arrived))),
            },
        }
    }

    /// On an oversubscribed host, polls, and yields the core at most a few times to the ranks of
    /// the same core that have not `arrived`. On any other host, returns `None`.
    fn poll_yielding<T>(
        &self,
        mut ready: impl FnMut() -> Option<T>,
        arrived: impl Fn(Rank) -> bool,
    ) -> Option<T> {
        if !self.is_oversubscribed() {
            return None;
        }
        ready().or_else(|| self.shm.yield_to_missing(ready, arrived))
    }

    /// Waits for the report grace period after the deadline, if every missing rank is in an
    /// operation of the group. In that case the missing ranks wait for another rank, so this rank
    /// cannot name the late rank: it is on another node, or is late for an earlier operation. A
    /// rank that can name it reports first. Returns `None` if no rank has reported.
    fn await_other_reports<T>(
        &self,
        ready: &mut impl FnMut() -> Option<T>,
        arrived: &impl Fn(Rank) -> bool,
    ) -> Option<Result<T>> {
        let region = self.shm.region;
        let is_inside = |rank: Rank| arrived(rank) || region.progress(rank).is_in_operation();
        // The grace period starts at the deadline, so the grace periods of several waits do not add
        // up.
        let deadline = self.operation.deadline();
        let grace = (deadline.timeout() + self.report_grace).saturating_sub(deadline.elapsed());
        if grace.is_zero() || !self.others().all(is_inside) {
            return None;
        }
        let doorbell = region.doorbell(self.shm.rank);
        let halt_reason = || self.shm.domain.failure();
        match wait_until(
            doorbell,
            WaitPolicy::SLEEP_SOON,
            &Deadline::after(grace),
            halt_reason,
            ready,
        ) {
            Ok(value) => Some(Ok(value)),
            Err(WaitInterrupt::Aborted(error)) => Some(Err(error)),
            Err(WaitInterrupt::Deadline) => None,
        }
    }

    /// Waits for the failure that caused a rank to leave, and returns it. In a group on several
    /// nodes, the cause may be a failure on another node, whose report this rank has not received
    /// yet. Without such a report, returns `error`.
    #[cold]
    fn await_root_failure(&self, rank: Rank, error: Error) -> Error {
        let domain = self.shm.domain;
        if self.report_grace <= NODE_REPORT_GRACE || !domain.has_left(rank) {
            return error;
        }
        let doorbell = self.shm.region.doorbell(self.shm.rank);
        let failure = || domain.failure();
        wait_until(
            doorbell,
            WaitPolicy::SLEEP_SOON,
            &Deadline::after(DEPARTURE_GRACE),
            || None,
            failure,
        )
        .unwrap_or(error)
    }

    /// Fails the domain with this error. Returns the first error that any rank of the domain has
    /// reported.
    pub(in crate::algo::shared) fn fail(&self, error: Error) -> Error {
        self.shm.domain.fail(&error);
        self.shm.domain.failure().unwrap_or(error)
    }

    /// Returns the reason why a wait for a rank cannot complete.
    fn halt_reason(&self, rank: Rank) -> Option<Error> {
        let failure = self.shm.domain.failure();
        failure
            // The rank for which this rank waits may have left because of the death.
            .or_else(|| self.needed_death())
            .or_else(|| self.departure_error(rank))
            .or_else(|| self.newest_mismatch(rank))
    }

    /// Returns the mismatch error if the newest step that a rank has published belongs to a
    /// different operation than the same step of this rank.
    fn newest_mismatch(&self, rank: Rank) -> Option<Error> {
        let done = self.shm.region.progress(rank).finished_step();
        let newest = done.max(1)..=done + 1;
        newest.rev().any(|step| self.has_mismatch(rank, step)).then(|| self.mismatch_error(rank))
    }
}
