//! The protocol of steps: how ranks that share memory agree on what is written, what may be read
//! and what may be overwritten.
//!
//! The operations of a group are a sequence of *steps*, numbered from 1, the same on every rank:
//! which steps an operation takes depends only on what all ranks agree on. For each step a rank may
//! publish one line, with a small payload or a filled slot behind it.
//!
//! * **Arrival.** A line that holds step n was published by a rank that has finished reading every
//!   line and slot of step n-1. Algorithms keep this: they publish step n+1 only after their last
//!   read of step n.
//! * **Reuse.** A line is reused after 64 steps, a slot after 4. Before its owner overwrites step
//!   n-k it must know that every rank has finished that step: from the peers' later arrivals, which
//!   is free where everybody waits for everybody, else from the `done` word in their progress. So a
//!   staged operation needs no barrier at its end, and a root may run ahead of its readers.
//! * **Agreement.** Each line carries a fingerprint chained over everything that its owner has done
//!   so far. A reader compares it with its own on arrival, so that two ranks that have ever called
//!   different things find out at the first line one reads of the other, and say where they parted.
//!   Whoever waits for a line compares the newest that there is of that rank meanwhile: it may have
//!   stopped at an earlier operation. An operation over messages alone has a step for that, of
//!   which nobody reads anything.
//!
//! * **Waking.** Whoever publishes rings after the store that is waited for, and so is heard. But a
//!   rank finishes its last step after it has rung for it, and rings no more, since nearly nobody
//!   waits for that: whoever is ahead by all its slots or lines. So that wait sleeps in short
//!   slices and looks again; and a rank that reads nothing of the step that it publishes finishes
//!   it before it rings.
//!
//! Any failure is written into the domain's abort record, which ends the waits of all ranks.

mod hand;
pub mod prompt;
mod reasons;
mod turns;
mod waits;

use crate::algo::lateness::Lateness;
use crate::algo::shared::direct::Direct;
use crate::algo::shared::one_step::Heard;
use crate::algo::{Operation, fingerprint};
use crate::base::buffer::{Dst, Src};
use crate::base::error::Result;
use crate::base::ids::{GroupId, Rank, WorldSize};
use crate::base::sync::AtomicU64;
use crate::kernel::Folding;
use crate::transport::line::Line;
use crate::transport::region::{LINES, SLOTS};
use crate::transport::{Descriptor, PeerName, SharedDomain};
use hand::Hand;
use std::cell::Cell;
use std::time::Duration;

/// For how long a rank that cannot name who is late lets others report first.
const GRACE: Duration = Duration::from_millis(150);

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
    /// For each rank, whether what it had to publish was there when this rank looked for it first,
    /// the last time.
    is_ahead: Vec<bool>,
    /// What a fence is made by.
    fence: AtomicU64,
    direct: Direct,
}

impl Lane {
    /// The beginning of a group of `size` ranks.
    pub fn new(group: GroupId, size: WorldSize) -> Self {
        let chain = fingerprint::seed(group, size);
        let (is_ahead, fence) = (vec![false; size], AtomicU64::new(0));
        let (done, direct) = (vec![0; size], Direct::default());
        Self { step: 0, chain, done, all_done: 0, is_ahead, fence, direct }
    }

    /// What is remembered of operations that went directly.
    pub fn direct(&self) -> &Direct {
        &self.direct
    }
}

/// One operation on its way through its steps.
#[derive(Debug)]
pub struct Steps<'a> {
    hand: Hand<'a>,
    operation: &'a Operation<'a>,
    words: [u64; 3],
    grace: Duration,
    algorithm: &'static str,
    /// It was told that the operation begins.
    has_begun: Cell<bool>,
    /// This rank has noted a step without ringing: somebody who runs ahead may sleep until it has
    /// finished that.
    owes_ring: bool,
    /// The first step is published already.
    is_published: bool,
    /// Whether the operation goes directly has been asked, here or by all.
    is_settled: bool,
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
        let (hand, is_published) = (Hand::of(domain, lane), operation.is_published);
        let steps = Self {
            hand,
            operation,
            words,
            grace: GRACE,
            algorithm,
            has_begun: Cell::new(is_published),
            owes_ring: false,
            is_published,
            is_settled: false,
            lateness: Lateness::of(operation),
        };
        if is_published {
            return steps;
        }
        steps.hand.enter(&steps.words, &operation.descriptor.label);
        if !operation.labels.is_empty() {
            let labels = steps.hand.region.labels(steps.hand.rank);
            labels.put_list(operation.descriptor.sequence, operation.labels);
        }
        if operation.probe.wants_all() {
            // It would rather have the true time.
            steps.begins();
        }
        steps
    }

    /// Tells that the operation begins, once: when the others have what they wait for of this rank,
    /// so that they need not wait for that too, and before this one waits for anything for long.
    #[inline]
    pub fn begins(&self) {
        if !self.has_begun.replace(true) {
            self.operation.probe.begins(self.algorithm);
        }
    }

    /// For operations between nodes: at the deadline, a rank that cannot name who is late lets
    /// others report first for this long, since it may take longer.
    #[must_use]
    pub fn with_grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.hand.rank
    }

    /// The number of ranks.
    pub fn size(&self) -> WorldSize {
        self.hand.size()
    }

    /// What the ranks share.
    pub(super) fn domain(&self) -> &'a dyn SharedDomain {
        self.hand.domain
    }

    /// What this rank remembers of operations that went directly.
    pub(super) fn direct(&self) -> &Direct {
        &self.hand.lane.direct
    }

    /// Whether it has been asked already if the operation goes directly.
    pub(super) fn is_settled(&self) -> bool {
        self.is_settled
    }

    /// It is not asked again.
    pub(super) fn settle(&mut self) {
        self.is_settled = true;
    }

    /// What this rank remembers of operations that went directly, to change it.
    pub(super) fn direct_mut(&mut self) -> &mut Direct {
        &mut self.hand.lane.direct
    }

    /// Who a rank is.
    pub(super) fn peer(&self, rank: Rank) -> &'a PeerName {
        self.hand.domain.peer(rank)
    }

    /// What all ranks agree on.
    pub(super) fn descriptor(&self) -> &'a Descriptor {
        &self.operation.descriptor
    }

    /// The bytes of a slot.
    pub fn slot_bytes(&self) -> usize {
        self.hand.region.geometry().slot_bytes
    }

    /// Whether ranks have no core each, so that each wait takes a context switch: the same for all.
    pub fn is_crowded(&self) -> bool {
        self.hand.domain.pace().crowded
    }

    /// The other ranks, the next one first, so that not all read from the same one at once.
    pub fn others(&self) -> impl Iterator<Item = Rank> + use<> {
        self.hand.others()
    }

    /// Whether this rank's slot for the coming step is free.
    pub fn has_slot(&self) -> bool {
        let step = (self.hand.lane.step + 1).saturating_sub(SLOTS);
        let is_done = |rank: Rank| {
            self.hand.lane.done[rank] >= step || self.hand.region.progress(rank).done() >= step
        };
        self.others().all(is_done)
    }

    /// This rank's slot for the coming step, once everybody has finished with what it held before.
    ///
    /// # Errors
    /// What ended the wait: `Timeout`, `PeerFailed`, `Aborted`.
    pub fn next_slot(&mut self) -> Result<Dst<'a>> {
        self.await_done((self.hand.lane.step + 1).saturating_sub(SLOTS))?;
        self.hand.region.own_slot(self.hand.rank, self.hand.lane.step + 1)
    }

    /// All of this rank's slots, as memory of its own until it publishes the coming step: once all
    /// have published the current one, as [`Steps::await_all`] has found, they have finished with
    /// what these held before.
    ///
    /// # Errors
    /// `OutOfMemory`, `System`.
    pub fn own_slots(&self) -> Result<Dst<'a>> {
        self.hand.region.own_slots(self.hand.rank)
    }

    /// The part of that slot that [`Steps::next_part`] gives, unless the step is published already,
    /// with what was put there then.
    ///
    /// # Errors
    /// As [`Steps::next_slot`].
    pub(super) fn part_to_fill(&mut self, room: usize) -> Result<Option<Dst<'a>>> {
        if self.is_published { Ok(None) } else { self.next_part(room).map(Some) }
    }

    /// A part of that slot, where all ranks use no more than `room` bytes of theirs in this step:
    /// [`Steps::part`] reads it.
    ///
    /// # Errors
    /// As [`Steps::next_slot`].
    pub fn next_part(&mut self, room: usize) -> Result<Dst<'a>> {
        self.await_done((self.hand.lane.step + 1).saturating_sub(SLOTS))?;
        self.hand.region.own_part(self.hand.rank, self.hand.lane.step + 1, room)
    }

    /// Publishes the coming step, with a payload that fits a line, and wakes who waits for it.
    ///
    /// # Errors
    /// As [`Steps::next_slot`].
    #[inline]
    pub fn publish(&mut self, payload: &[u8]) -> Result<()> {
        self.pass(payload, self.hand.lane.step)?;
        self.ring_others();
        self.begins();
        Ok(())
    }

    /// Publishes the coming step, with a payload that fits a line, and waits until every other rank
    /// has.
    ///
    /// # Errors
    /// As [`Steps::await_all`].
    pub fn exchange(&mut self, payload: &[u8]) -> Result<()> {
        if self.is_crowded() {
            // Who waits sleeps, and is woken first.
            self.publish(payload)?;
            return self.await_all();
        }
        // The line goes to the others' cores while this one notes that the operation begins, and
        // looks at theirs.
        self.advance(payload, self.hand.lane.step, Line::put)?;
        self.begins();
        self.others().for_each(|rank| self.look_for(rank));
        self.ring();
        self.await_all()
    }

    /// Looks for the first time whether a rank has published the current step.
    #[inline]
    pub fn look_for(&mut self, rank: Rank) {
        self.hand.look_for(rank);
    }

    /// Publishes the coming step, of which this rank reads nothing, and so has finished it at once.
    ///
    /// # Errors
    /// As [`Steps::next_slot`].
    pub fn give(&mut self, payload: &[u8]) -> Result<()> {
        self.pass(payload, self.hand.lane.step + 1)?;
        self.ring_others();
        self.begins();
        Ok(())
    }

    /// Publishes the coming step for the record: nobody waits for this rank in it. Whoever waits
    /// until this rank has finished it hears of that with the next step or the end of the
    /// operation.
    ///
    /// # Errors
    /// As [`Steps::next_slot`].
    pub fn note(&mut self) -> Result<()> {
        self.advance(&[], self.hand.lane.step, Line::put)?;
        if self.owes_ring {
            self.ring();
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
        self.hand.has_seen_all();
        Ok(())
    }

    /// Waits until a rank has published the current step.
    ///
    /// # Errors
    /// As [`Steps::await_all`].
    pub fn await_rank(&mut self, rank: Rank) -> Result<()> {
        let step = self.hand.lane.step;
        let line = self.hand.region.line(rank, step);
        if line.step() < step {
            self.await_line(rank, line)?;
        }
        if !self.hand.agrees(rank) {
            return Err(self.fail(self.mismatch(rank)));
        }
        Ok(())
    }

    /// The payload of a rank that has published the current step.
    pub fn payload(&self, rank: Rank, into: &mut [u8]) {
        self.hand.region.line(rank, self.hand.lane.step).read_payload(into);
    }

    /// What has been said in the current step, which all speakers have published, in so much `room`
    /// of their slots if it was there; `own` is what this rank had to say, and `folding` what a
    /// reduction does with it.
    pub(super) fn heard<'h>(
        &self,
        (own, room): (Src<'h>, usize),
        folding: Option<Folding>,
    ) -> Heard<'h>
    where
        'a: 'h,
    {
        let Hand { region, rank, .. } = self.hand;
        Heard { region, rank, step: self.hand.lane.step, room, own, folding }
    }

    /// The slot of a rank that has published the current step.
    pub fn slot(&self, rank: Rank) -> Src<'a> {
        self.hand.region.slot(rank, self.hand.lane.step)
    }

    /// The part of its slot that such a rank uses in this step, in which all use no more than
    /// `room` bytes.
    pub fn part(&self, rank: Rank, room: usize) -> Src<'a> {
        self.hand.region.part(rank, self.hand.lane.step, room)
    }

    /// In the middle of a rooted operation: says at once that this rank reads nothing of its steps
    /// so far any more, so that whoever runs ahead may reuse their slots.
    pub fn checkpoint(&mut self) {
        self.hand.region.progress(self.hand.rank).pass(self.hand.lane.step);
        self.ring();
    }

    /// Whether any wait of the operation was longer than a moment.
    pub fn has_waited_long(&self) -> bool {
        self.lateness.is_long()
    }

    /// Leaves the operation: this rank reads nothing of it any more.
    pub fn finish(mut self) {
        // One that had nothing to publish, and nothing to wait for, has not said so yet.
        self.begins();
        self.hand.finish(self.words[2]);
        if self.owes_ring {
            self.ring();
        }
    }

    /// Stores the coming step, once all have finished with what its line held before, and says that
    /// this rank has finished all steps up to `finished`: the one before at least, which in the
    /// middle of a rooted operation is all that the others hear of this rank.
    fn pass(&mut self, payload: &[u8], finished: u64) -> Result<()> {
        self.advance(payload, finished, Line::publish)
    }

    /// The same by one of the line's ways.
    #[inline]
    fn advance(
        &mut self,
        payload: &[u8],
        finished: u64,
        publish: impl Fn(&Line, u64, u64, &[u64; 3], &[u8]),
    ) -> Result<()> {
        if std::mem::take(&mut self.is_published) {
            return Ok(());
        }
        self.await_done((self.hand.lane.step + 1).saturating_sub(LINES))?;
        let called = (&self.words, &self.operation.descriptor.label);
        self.hand.store(called, payload, finished, publish);
        Ok(())
    }

    /// Wakes who waits for what was stored by a sequentially consistent read-modify-write, or
    /// before a fence.
    #[inline]
    fn ring_others(&mut self) {
        self.owes_ring = false;
        self.hand.ring_fenced();
    }

    /// Wakes who waits for what was stored.
    #[inline]
    fn ring(&mut self) {
        self.owes_ring = false;
        self.hand.ring();
    }

    /// Waits until every other rank has finished a step.
    #[inline]
    fn await_done(&mut self, step: u64) -> Result<()> {
        if self.hand.lane.all_done >= step { Ok(()) } else { self.look_who_is_done(step) }
    }
}
