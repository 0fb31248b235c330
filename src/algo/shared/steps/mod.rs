//! The protocol of steps: how ranks that share memory agree on what is written, what may be read and
//! what may be overwritten.
//!
//! The operations of a group are a sequence of *steps*, numbered from 1, the same on every rank: which
//! steps an operation takes depends only on what all ranks agree on. For each step a rank may
//! publish one line, with a small payload or a filled slot behind it.
//!
//! * **Arrival.** A line that holds step n was published by a rank that has finished reading every line
//!   and slot of step n-1. Algorithms keep this: they publish step n+1 only after their last read of
//!   step n.
//! * **Reuse.** A line is reused after 64 steps, a slot after 4. Before its owner overwrites step n-k it
//!   must know that every rank has finished that step: from the peers' later arrivals, which is free
//!   where everybody waits for everybody, else from the `done` word in their progress. So a staged
//!   operation needs no barrier at its end, and a root may run ahead of its readers.
//! * **Agreement.** Each line carries a fingerprint chained over everything that its owner has done so
//!   far. A reader compares it with its own on arrival, so that two ranks that have ever called
//!   different things find out at the first line one reads of the other, and say where they parted. Whoever waits for
//!   a line compares the newest that there is of that rank meanwhile: it may have stopped at an earlier operation. An
//!   operation over messages alone has a step for that, of which nobody reads anything.
//!
//! * **Waking.** Whoever publishes rings after the store that is waited for, and so is heard. But a rank finishes its
//!   last step after it has rung for it, and rings no more, since nearly nobody waits for that: whoever is ahead by
//!   all its slots or lines. So that wait sleeps in short slices and looks again; and a rank that reads nothing of the
//!   step that it publishes finishes it before it rings.
//!
//! Any failure is written into the domain's abort record, which ends the waits of all ranks.

mod reasons;

use crate::algo::lateness::Lateness;
use crate::algo::{Operation, fingerprint};
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use crate::base::ids::{GroupId, Rank, WorldSize};
use crate::transport::line::Line;
use crate::transport::region::{LINES, Region, SLOTS};
use crate::transport::{Descriptor, PeerName, SharedDomain};
use crate::wait::watch::Watch;
use crate::wait::{Interrupt, Pace, until, until_watched};
use std::cell::Cell;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

/// How long a wait for a finished step sleeps before it looks again without having been rung: at first, and at most.
const FIRST_SLICE: Duration = Duration::from_millis(5);
const LAST_SLICE: Duration = Duration::from_millis(100);

/// For how long a rank that cannot name who is late lets others report first.
const GRACE: Duration = Duration::from_millis(150);

/// After how many looks in a tight loop, some tens of microseconds, a wait is long enough to look who else is late.
const SHORT_LOOKS: u32 = 1000;

/// What a rank remembers between operations of one domain.
#[derive(Debug)]
pub struct Lane {
    /// The last step published or passed.
    step: u64,
    /// The fingerprint of everything up to that step.
    chain: u64,
    /// For each rank, a step that it has finished for certain.
    done: Vec<u64>,
    /// One that all others have.
    all_done: u64,
}

impl Lane {
    /// The beginning of a group of `size` ranks.
    pub fn new(group: GroupId, size: WorldSize) -> Self {
        let chain = fingerprint::seed(group, size);
        Self { step: 0, chain, done: vec![0; size], all_done: 0 }
    }
}

/// One operation on its way through its steps.
#[derive(Debug)]
pub struct Steps<'a> {
    domain: &'a dyn SharedDomain,
    /// What the domain says of itself, which would be a call through a table each time.
    region: &'a Region,
    rank: Rank,
    lane: &'a mut Lane,
    operation: &'a Operation<'a>,
    words: [u64; 3],
    grace: Duration,
    algorithm: &'static str,
    /// It was told that the operation begins.
    has_begun: Cell<bool>,
    /// This rank has noted a step without ringing: somebody who runs ahead may sleep until it has finished that.
    owes_ring: bool,
    lateness: Lateness<'a>,
}

impl<'a> Steps<'a> {
    /// Enters an operation, which goes by this algorithm, and number of one.
    pub fn begin(
        domain: &'a dyn SharedDomain,
        lane: &'a mut Lane,
        operation: &'a Operation<'a>,
        (algorithm, number): (&'static str, u8),
    ) -> Self {
        // Ranks that go different ways do not fit together either.
        let words = operation.descriptor.encode_with(number);
        let (region, rank) = (domain.region(), domain.rank());
        region.progress(rank).enter(&words);
        let (grace, owes_ring) = (GRACE, false);
        let lateness = Lateness::of(operation);
        let has_begun = Cell::new(false);
        let steps = Self {
            domain,
            region,
            rank,
            lane,
            operation,
            words,
            grace,
            algorithm,
            has_begun,
            owes_ring,
            lateness,
        };
        if operation.probe.wants_all() {
            // It would rather have the true time.
            steps.begins();
        }
        steps
    }

    /// Tells that the operation begins, once: when the others have what they wait for of this rank, so that they need not
    /// wait for that too, and before this one waits for anything for long.
    #[inline]
    pub fn begins(&self) {
        if !self.has_begun.replace(true) {
            self.operation.probe.begins(self.algorithm);
        }
    }

    /// For operations between nodes: at the deadline, a rank that cannot name who is late lets others report first
    /// for this long, since it may take longer.
    #[must_use]
    pub fn with_grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// The number of ranks.
    pub fn size(&self) -> WorldSize {
        self.region.geometry().ranks
    }

    /// What the ranks share.
    pub(super) fn domain(&self) -> &'a dyn SharedDomain {
        self.domain
    }

    /// Who a rank is.
    pub(super) fn peer(&self, rank: Rank) -> &'a PeerName {
        self.domain.peer(rank)
    }

    /// What all ranks agree on.
    pub(super) fn descriptor(&self) -> &'a Descriptor {
        &self.operation.descriptor
    }

    /// The bytes of a slot.
    pub fn slot_bytes(&self) -> usize {
        self.region.geometry().slot_bytes
    }

    /// The other ranks, the next one first, so that not all read from the same one at once.
    pub fn others(&self) -> impl Iterator<Item = Rank> + use<> {
        let (rank, size) = (self.rank, self.size());
        // Without a division, which takes as long as all else of a step.
        (rank + 1..size).chain(0..rank)
    }

    /// Whether this rank's slot for the coming step is free.
    pub fn has_slot(&self) -> bool {
        let step = (self.lane.step + 1).saturating_sub(SLOTS);
        let is_done =
            |rank: Rank| self.lane.done[rank] >= step || self.region.progress(rank).done() >= step;
        self.others().all(is_done)
    }

    /// This rank's slot for the coming step, once everybody has finished with what it held before.
    ///
    /// # Errors
    /// What ended the wait: `Timeout`, `PeerFailed`, `Aborted`.
    pub fn next_slot(&mut self) -> Result<Dst<'a>> {
        self.await_done((self.lane.step + 1).saturating_sub(SLOTS))?;
        self.region.own_slot(self.rank, self.lane.step + 1)
    }

    /// Publishes the coming step, with a payload that fits a line, and wakes who waits for it.
    ///
    /// # Errors
    /// As [`Steps::next_slot`].
    #[inline]
    pub fn publish(&mut self, payload: &[u8]) -> Result<()> {
        self.pass(payload, self.lane.step)?;
        self.ring_others();
        self.begins();
        Ok(())
    }

    /// Publishes the coming step, of which this rank reads nothing, and so has finished it at once.
    ///
    /// # Errors
    /// As [`Steps::next_slot`].
    pub fn give(&mut self, payload: &[u8]) -> Result<()> {
        self.pass(payload, self.lane.step + 1)?;
        self.ring_others();
        self.begins();
        Ok(())
    }

    /// Publishes the coming step for the record: nobody waits for this rank in it. Whoever waits until this rank has
    /// finished it hears of that with the next step or the end of the operation.
    ///
    /// # Errors
    /// As [`Steps::next_slot`].
    pub fn note(&mut self) -> Result<()> {
        self.pass(&[], self.lane.step)?;
        if self.owes_ring {
            self.ring_others();
        }
        self.owes_ring = true;
        Ok(())
    }

    /// Waits until every other rank has published the current step.
    ///
    /// # Errors
    /// As [`Steps::next_slot`], and `Mismatch` where a rank has called something else.
    pub fn await_all(&mut self) -> Result<()> {
        self.others().try_for_each(|rank| self.await_rank(rank))?;
        self.lane.all_done = self.lane.all_done.max(self.lane.step - 1);
        Ok(())
    }

    /// Waits until a rank has published the current step.
    ///
    /// # Errors
    /// As [`Steps::await_all`].
    pub fn await_rank(&mut self, rank: Rank) -> Result<()> {
        let step = self.lane.step;
        let line = self.region.line(rank, step);
        if line.step() < step {
            self.await_line(rank, line)?;
        }
        if line.chain() != self.lane.chain || line.step() != step {
            return Err(self.fail(self.mismatch(rank)));
        }
        let done = &mut self.lane.done[rank];
        *done = (*done).max(step - 1);
        Ok(())
    }

    /// [`Steps::await_rank`] where its line has not come.
    fn await_line(&self, rank: Rank, line: &Line) -> Result<()> {
        let step = self.lane.step;
        let began = self.lateness.wait_begins();
        let looks = Cell::new(self.short_looks());
        let ready = || if line.step() >= step { Some(()) } else { self.looked_in_vain(&looks) };
        let has_published = |other| self.region.line(other, step).step() >= step;
        self.wait_for(rank, ready, has_published)?;
        self.ends_waiting(began, rank);
        Ok(())
    }

    /// The payload of a rank that has published the current step.
    pub fn payload(&self, rank: Rank, into: &mut [u8]) {
        self.region.line(rank, self.lane.step).read_payload(into);
    }

    /// The first bytes of the payload of a rank that has published the current step, where they lie until this rank publishes
    /// the next one.
    pub fn payload_in_place(&self, rank: Rank, len: usize) -> Src<'a> {
        self.region.payload(rank, self.lane.step, len)
    }

    /// The slot of a rank that has published the current step.
    pub fn slot(&self, rank: Rank) -> Src<'a> {
        self.region.slot(rank, self.lane.step)
    }

    /// In the middle of a rooted operation: says at once that this rank reads nothing of its steps so far any
    /// more, so that whoever runs ahead may reuse their slots.
    pub fn checkpoint(&mut self) {
        self.region.progress(self.rank).pass(self.lane.step);
        fence(Ordering::SeqCst);
        self.ring_others();
    }

    /// Whether any wait of the operation was longer than a moment.
    pub fn has_waited_long(&self) -> bool {
        self.lateness.is_long()
    }

    /// Leaves the operation: this rank reads nothing of it any more.
    pub fn finish(mut self) {
        // One that had nothing to publish, and nothing to wait for, has not said so yet.
        self.begins();
        self.region.progress(self.rank).finish(self.lane.step, self.words[2]);
        if self.owes_ring {
            fence(Ordering::SeqCst);
            self.ring_others();
        }
        let next = self.lane.step + 1;
        if self.lane.all_done + LINES >= next {
            self.region.line(self.rank, next).prepare();
        }
    }

    /// Stores the coming step, once all have finished with what its line held before, and says that this rank has finished
    /// all steps up to `finished`: the one before at least, which in the middle of a rooted operation is all that the
    /// others hear of this rank.
    fn pass(&mut self, payload: &[u8], finished: u64) -> Result<()> {
        let step = self.lane.step + 1;
        self.await_done(step.saturating_sub(LINES))?;
        self.region.progress(self.rank).pass(finished);
        let chain = fingerprint::extend(self.lane.chain, &self.words);
        let line = self.region.line(self.rank, step);
        line.publish(step, chain, &self.words, payload);
        self.lane.step = step;
        self.lane.chain = chain;
        Ok(())
    }

    /// Wakes who waits for what was stored by a sequentially consistent read-modify-write, or before a fence.
    #[inline]
    fn ring_others(&mut self) {
        self.owes_ring = false;
        for rank in self.others() {
            if self.region.bell(rank).is_attended() {
                self.domain.ring_fenced(rank);
            }
        }
    }

    /// Waits until every other rank has finished a step.
    #[inline]
    fn await_done(&mut self, step: u64) -> Result<()> {
        if self.lane.all_done >= step { Ok(()) } else { self.look_who_is_done(step) }
    }

    /// [`Steps::await_done`] where that is not known yet.
    fn look_who_is_done(&mut self, step: u64) -> Result<()> {
        for rank in self.others() {
            if self.lane.done[rank] >= step {
                continue;
            }
            let progress = |rank| self.region.progress(rank).done();
            let ready = || Some(progress(rank)).filter(|&done| done >= step);
            let arrived = |other| progress(other) >= step;
            let began = self.lateness.wait_begins();
            let looks = Cell::new(self.short_looks());
            self.doze_until(rank, &|| ready().or_else(|| self.looked_in_vain(&looks)), &arrived);
            self.lane.done[rank] = self.wait_for(rank, ready, arrived)?;
            self.ends_waiting(began, rank);
        }
        let all = self.others().map(|rank| self.lane.done[rank]).min();
        self.lane.all_done = all.unwrap_or(step);
        Ok(())
    }

    /// After how many looks a wait is long.
    fn short_looks(&self) -> u32 {
        if self.domain.pace().crowded { 1 } else { SHORT_LOOKS }
    }

    /// A look in a wait found nothing; once there have been as many as were `left`, this rank looks who else is late.
    fn looked_in_vain<T>(&self, left: &Cell<u32>) -> Option<T> {
        match left.get() {
            0 => self.look_around(None),
            looks => left.set(looks - 1),
        }
        None
    }

    /// Looks who has come into the operation; whoever was `awaited` has, or is past what it was awaited for.
    fn look_around(&self, awaited: Option<Rank>) {
        let (region, moment) = (self.region, self.operation.descriptor.moment());
        let has_come = |rank| awaited == Some(rank) || region.progress(rank).has_entered(moment);
        let blame = |rank, by| (self.domain.peer(rank).rank, by);
        // All are noted at the first look.
        let news = if self.lateness.is_long() { 0 } else { self.size() };
        self.lateness.look(self.others().take(news), has_come, blame);
    }

    fn ends_waiting(&self, began: Option<Instant>, rank: Rank) {
        if self.lateness.is_long() {
            self.look_around(Some(rank));
        }
        self.lateness.wait_ends(began, self.domain.peer(rank).rank);
    }

    /// Waits in slices, since no ring follows a step that is finished silently; ends also for any reason for which
    /// [`Steps::wait_for`] ends at once.
    fn doze_until(
        &self,
        rank: Rank,
        ready: &impl Fn() -> Option<u64>,
        arrived: &impl Fn(Rank) -> bool,
    ) {
        self.begins();
        let (bell, deadline) = (self.region.bell(self.rank), self.operation.deadline());
        let halted = || self.halted(rank);
        let mut pace = self.domain.pace();
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
        let bell = self.region.bell(self.rank);
        let halted = || self.halted(rank);
        let (pace, deadline) = (self.domain.pace(), self.operation.deadline());
        let mut watch = Watch::default();
        let told = || watch.look(|lasted| self.tell(lasted, &arrived));
        match until_watched(bell, pace, deadline, halted, &mut ready, told) {
            Ok(value) => Ok(value),
            Err(Interrupt::Halted(error)) => Err(self.fail(error)),
            Err(Interrupt::Deadline) => match self.defer(&mut ready, &arrived) {
                Some(outcome) => outcome,
                None => Err(self.fail(self.late(arrived))),
            },
        }
    }

    /// Where every rank that is missing is in an operation of the group, it waits itself, and the late one is on another
    /// node or late for an earlier operation: those who can name it speak first.
    fn defer<T>(
        &self,
        ready: &mut impl FnMut() -> Option<T>,
        arrived: &impl Fn(Rank) -> bool,
    ) -> Option<Result<T>> {
        let region = self.region;
        let is_inside = |rank: Rank| arrived(rank) || region.progress(rank).is_inside();
        // Graces of several waits do not add up.
        let deadline = self.operation.deadline();
        let grace = (deadline.allowed() + self.grace).saturating_sub(deadline.elapsed());
        if grace.is_zero() || !self.others().all(is_inside) {
            return None;
        }
        let bell = region.bell(self.rank);
        let halted = || self.domain.failure();
        match until(bell, Pace::PATIENT, &Deadline::after(grace), halted, ready) {
            Ok(value) => Some(Ok(value)),
            Err(Interrupt::Halted(error)) => Some(Err(error)),
            Err(Interrupt::Deadline) => None,
        }
    }

    /// Fails the domain; the error to return is the first one that anybody has reported.
    pub(super) fn fail(&self, error: Error) -> Error {
        self.domain.fail(&error);
        self.domain.failure().unwrap_or(error)
    }

    /// Why a wait for a rank is in vain.
    fn halted(&self, rank: Rank) -> Option<Error> {
        let failure = self.domain.failure();
        failure.or_else(|| self.departed(rank)).or_else(|| self.parted(rank))
    }

    /// Whether the newest that a rank has published differs from what this rank has.
    fn parted(&self, rank: Rank) -> Option<Error> {
        let done = self.region.progress(rank).done();
        let newest = done.max(1)..=done + 1;
        newest.rev().any(|step| self.differs(rank, step)).then(|| self.mismatch(rank))
    }
}
