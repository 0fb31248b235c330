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
//!   is free where everybody waits for everybody, else from the `finished_steps` word in their
//!   progress. So a staged operation needs no barrier at its end, and a root may run ahead of its
//!   readers.
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

mod core_yield;
mod error_reports;
pub mod fast_path;
mod sequencer_core;
mod waits;

use crate::algo::arrival_skew::ArrivalSkew;
use crate::algo::shared::arena_access::ArenaAccess;
use crate::algo::shared::one_step::Contributions;
use crate::algo::{Operation, fingerprint};
use crate::base::buffer::{Dst, Src};
use crate::base::error::Result;
use crate::base::ids::{GroupId, Rank, WorldSize};
use crate::base::sync::AtomicU64;
use crate::kernel::ResolvedFold;
use crate::transport::ctrl_slot::CtrlSlot;
use crate::transport::region::{CTRL_SLOT_COUNT, DATA_SLOT_COUNT};
use crate::transport::{Descriptor, PeerName, SharedDomain};
use sequencer_core::SequencerCore;
use std::cell::Cell;
use std::time::Duration;

/// For how long a rank that cannot name who is late lets others report first.
const NODE_REPORT_GRACE: Duration = Duration::from_millis(150);

/// What a rank remembers between operations of one domain.
#[derive(Debug)]
pub struct ShmCursor {
    /// The last step published or passed.
    step: u64,
    /// The fingerprint of everything up to that step.
    call_fingerprint: u64,
    /// For each rank, a step that it has finished for certain.
    finished_steps: Vec<u64>,
    /// One that all others have.
    finished_by_all: u64,
    /// For each rank, whether what it had to publish was there when this rank looked for it first,
    /// the last time.
    is_early_rank: Vec<bool>,
    /// What a fence is made by.
    fence_word: AtomicU64,
    arena_access: ArenaAccess,
}

impl ShmCursor {
    /// The beginning of a group of `size` ranks.
    pub fn new(group: GroupId, size: WorldSize) -> Self {
        let call_fingerprint = fingerprint::seed(group, size);
        let (is_early_rank, fence_word) = (vec![false; size], AtomicU64::new(0));
        let (finished_steps, arena_access) = (vec![0; size], ArenaAccess::default());
        Self {
            step: 0,
            call_fingerprint,
            finished_steps,
            finished_by_all: 0,
            is_early_rank,
            fence_word,
            arena_access,
        }
    }

    /// What is remembered of operations that went directly.
    pub fn arena_access(&self) -> &ArenaAccess {
        &self.arena_access
    }
}

/// One operation on its way through its steps.
#[derive(Debug)]
pub struct ShmSequencer<'a> {
    shm: SequencerCore<'a>,
    operation: &'a Operation<'a>,
    words: [u64; 3],
    report_grace: Duration,
    algorithm: &'static str,
    /// It was told that the operation begins.
    has_recorded_start: Cell<bool>,
    /// This rank has noted a step without ringing: somebody who runs ahead may sleep until it has
    /// finished that.
    has_pending_wakeup: bool,
    /// The first step is published already.
    is_published: bool,
    /// Whether the operation goes directly has been asked, here or by all.
    is_arena_use_decided: bool,
    arrival_skew: ArrivalSkew<'a>,
}

impl<'a> ShmSequencer<'a> {
    /// Enters an operation, which goes by this algorithm, and number of one.
    pub fn begin(
        domain: &'a dyn SharedDomain,
        cursor: &'a mut ShmCursor,
        operation: &'a Operation<'a>,
        (algorithm, number): (&'static str, u8),
    ) -> Self {
        // Ranks that go different ways do not fit together either.
        let words = operation.descriptor.encode_with(number);
        let (shm, is_published) = (SequencerCore::of(domain, cursor), operation.is_published);
        let sequencer = Self {
            shm,
            operation,
            words,
            report_grace: NODE_REPORT_GRACE,
            algorithm,
            has_recorded_start: Cell::new(is_published),
            has_pending_wakeup: false,
            is_published,
            is_arena_use_decided: false,
            arrival_skew: ArrivalSkew::of(operation),
        };
        if is_published {
            return sequencer;
        }
        sequencer.shm.enter(&sequencer.words, &operation.descriptor.label);
        if !operation.labels.is_empty() {
            let labels = sequencer.shm.region.labels(sequencer.shm.rank);
            labels.publish_list(operation.descriptor.sequence, operation.labels);
        }
        if operation.observer.is_tracing_waits() {
            // It would rather have the true time.
            sequencer.record_start();
        }
        sequencer
    }

    /// Tells that the operation begins, once: when the others have what they wait for of this rank,
    /// so that they need not wait for that too, and before this one waits for anything for long.
    #[inline]
    pub fn record_start(&self) {
        if !self.has_recorded_start.replace(true) {
            self.operation.observer.record_start(self.algorithm);
        }
    }

    /// For operations between nodes: at the deadline, a rank that cannot name who is late lets
    /// others report first for this long, since it may take longer.
    #[must_use]
    pub fn with_report_grace(mut self, report_grace: Duration) -> Self {
        self.report_grace = report_grace;
        self
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.shm.rank
    }

    /// The number of ranks.
    pub fn size(&self) -> WorldSize {
        self.shm.size()
    }

    /// What the ranks share.
    pub(super) fn domain(&self) -> &'a dyn SharedDomain {
        self.shm.domain
    }

    /// What this rank remembers of operations that went directly.
    pub(super) fn arena_access(&self) -> &ArenaAccess {
        &self.shm.cursor.arena_access
    }

    /// Whether it has been asked already if the operation goes directly.
    pub(super) fn is_arena_use_decided(&self) -> bool {
        self.is_arena_use_decided
    }

    /// It is not asked again.
    pub(super) fn decide_arena_use(&mut self) {
        self.is_arena_use_decided = true;
    }

    /// What this rank remembers of operations that went directly, to change it.
    pub(super) fn arena_access_mut(&mut self) -> &mut ArenaAccess {
        &mut self.shm.cursor.arena_access
    }

    /// Who a rank is.
    pub(super) fn peer(&self, rank: Rank) -> &'a PeerName {
        self.shm.domain.peer(rank)
    }

    /// What all ranks agree on.
    pub(super) fn descriptor(&self) -> &'a Descriptor {
        &self.operation.descriptor
    }

    /// The bytes of a slot.
    pub fn slot_bytes(&self) -> usize {
        self.shm.region.geometry().slot_bytes
    }

    /// Whether ranks have no core each, so that each wait takes a context switch: the same for all.
    pub fn is_oversubscribed(&self) -> bool {
        self.shm.domain.wait_policy().is_oversubscribed
    }

    /// The other ranks, the next one first, so that not all read from the same one at once.
    pub fn others(&self) -> impl Iterator<Item = Rank> + use<> {
        self.shm.others()
    }

    /// Whether this rank's slot for the coming step is free.
    pub fn has_free_slot(&self) -> bool {
        let step = (self.shm.cursor.step + 1).saturating_sub(DATA_SLOT_COUNT);
        let is_done = |rank: Rank| {
            self.shm.cursor.finished_steps[rank] >= step
                || self.shm.region.progress(rank).finished_step() >= step
        };
        self.others().all(is_done)
    }

    /// This rank's slot for the coming step, once everybody has finished with what it held before.
    ///
    /// # Errors
    /// What ended the wait: `Timeout`, `PeerFailed`, `Aborted`.
    pub fn next_slot(&mut self) -> Result<Dst<'a>> {
        self.await_finished((self.shm.cursor.step + 1).saturating_sub(DATA_SLOT_COUNT))?;
        self.shm.region.own_data_slot(self.shm.rank, self.shm.cursor.step + 1)
    }

    /// All of this rank's slots, as memory of its own until it publishes the coming step: once all
    /// have published the current one, as [`ShmSequencer::await_all`] has found, they have finished
    /// with what these held before.
    ///
    /// # Errors
    /// `OutOfMemory`, `System`.
    pub fn own_slots(&self) -> Result<Dst<'a>> {
        self.shm.region.own_data_slots(self.shm.rank)
    }

    /// The part of that slot that [`ShmSequencer::next_part`] gives, unless the step is published
    /// already, with what was put there then.
    ///
    /// # Errors
    /// As [`ShmSequencer::next_slot`].
    pub(super) fn unpublished_part(&mut self, slot_bytes_used: usize) -> Result<Option<Dst<'a>>> {
        if self.is_published { Ok(None) } else { self.next_part(slot_bytes_used).map(Some) }
    }

    /// A part of that slot, where all ranks use no more than `slot_bytes_used` bytes of theirs in
    /// this step: [`ShmSequencer::slot_part`] reads it.
    ///
    /// # Errors
    /// As [`ShmSequencer::next_slot`].
    pub fn next_part(&mut self, slot_bytes_used: usize) -> Result<Dst<'a>> {
        self.await_finished((self.shm.cursor.step + 1).saturating_sub(DATA_SLOT_COUNT))?;
        self.shm.region.own_slot_part(self.shm.rank, self.shm.cursor.step + 1, slot_bytes_used)
    }

    /// Publishes the coming step, with a payload that fits a line, and wakes who waits for it.
    ///
    /// # Errors
    /// As [`ShmSequencer::next_slot`].
    #[inline]
    pub fn publish(&mut self, payload: &[u8]) -> Result<()> {
        self.publish_step(payload, self.shm.cursor.step)?;
        self.wake_others_fenced();
        self.record_start();
        Ok(())
    }

    /// Publishes the coming step, with a payload that fits a line, and waits until every other rank
    /// has.
    ///
    /// # Errors
    /// As [`ShmSequencer::await_all`].
    pub fn publish_and_await_all(&mut self, payload: &[u8]) -> Result<()> {
        if self.is_oversubscribed() {
            // Who waits sleeps, and is woken first.
            self.publish(payload)?;
            return self.await_all();
        }
        // The line goes to the others' cores while this one notes that the operation begins, and
        // looks at theirs.
        self.store_step(payload, self.shm.cursor.step, CtrlSlot::publish_unfenced)?;
        self.record_start();
        self.others().for_each(|rank| self.poll_first(rank));
        self.wake_others();
        self.await_all()
    }

    /// Looks for the first time whether a rank has published the current step.
    #[inline]
    pub fn poll_first(&mut self, rank: Rank) {
        self.shm.poll_first(rank);
    }

    /// Publishes the coming step, of which this rank reads nothing, and so has finished it at once.
    ///
    /// # Errors
    /// As [`ShmSequencer::next_slot`].
    pub fn publish_finished(&mut self, payload: &[u8]) -> Result<()> {
        self.publish_step(payload, self.shm.cursor.step + 1)?;
        self.wake_others_fenced();
        self.record_start();
        Ok(())
    }

    /// Publishes the coming step for the record: nobody waits for this rank in it. Whoever waits
    /// until this rank has finished it hears of that with the next step or the end of the
    /// operation.
    ///
    /// # Errors
    /// As [`ShmSequencer::next_slot`].
    pub fn publish_unnotified(&mut self) -> Result<()> {
        self.store_step(&[], self.shm.cursor.step, CtrlSlot::publish_unfenced)?;
        if self.has_pending_wakeup {
            self.wake_others();
        }
        self.has_pending_wakeup = true;
        Ok(())
    }

    /// Waits until every other rank has published the current step.
    ///
    /// # Errors
    /// As [`ShmSequencer::next_slot`], and `Mismatch` where a rank has called something else.
    pub fn await_all(&mut self) -> Result<()> {
        self.others().try_for_each(|rank| self.await_rank(rank))?;
        self.shm.record_all_arrived();
        Ok(())
    }

    /// Waits until a rank has published the current step.
    ///
    /// # Errors
    /// As [`ShmSequencer::await_all`].
    pub fn await_rank(&mut self, rank: Rank) -> Result<()> {
        let step = self.shm.cursor.step;
        let line = self.shm.region.ctrl_slot(rank, step);
        if line.step() < step {
            self.await_line(rank, line)?;
        }
        if !self.shm.verify_rank(rank) {
            return Err(self.fail(self.mismatch_error(rank)));
        }
        Ok(())
    }

    /// The payload of a rank that has published the current step.
    pub fn payload(&self, rank: Rank, into: &mut [u8]) {
        self.shm.region.ctrl_slot(rank, self.shm.cursor.step).read_payload(into);
    }

    /// What has been said in the current step, which all speakers have published, in so much
    /// `slot_bytes_used` of their slots if it was there; `own_payload` is what this rank had to
    /// say, and `resolved_fold` what a reduction does with it.
    pub(super) fn contributions<'h>(
        &self,
        (own_payload, slot_bytes_used): (Src<'h>, usize),
        resolved_fold: Option<ResolvedFold>,
    ) -> Contributions<'h>
    where
        'a: 'h,
    {
        let SequencerCore { region, rank, .. } = self.shm;
        Contributions {
            region,
            rank,
            step: self.shm.cursor.step,
            slot_bytes_used,
            own_payload,
            resolved_fold,
        }
    }

    /// The slot of a rank that has published the current step.
    pub fn slot(&self, rank: Rank) -> Src<'a> {
        self.shm.region.data_slot(rank, self.shm.cursor.step)
    }

    /// The part of its slot that such a rank uses in this step, in which all use no more than
    /// `slot_bytes_used` bytes.
    pub fn part(&self, rank: Rank, slot_bytes_used: usize) -> Src<'a> {
        self.shm.region.slot_part(rank, self.shm.cursor.step, slot_bytes_used)
    }

    /// In the middle of a rooted operation: says at once that this rank reads nothing of its steps
    /// so far any more, so that whoever runs ahead may reuse their slots.
    pub fn checkpoint(&mut self) {
        self.shm.region.progress(self.shm.rank).finish_step(self.shm.cursor.step);
        self.wake_others();
    }

    /// Whether any wait of the operation was longer than a moment.
    pub fn has_waited_long(&self) -> bool {
        self.arrival_skew.has_long_wait()
    }

    /// Leaves the operation: this rank reads nothing of it any more.
    pub fn finish(mut self) {
        // One that had nothing to publish, and nothing to wait for, has not said so yet.
        self.record_start();
        self.shm.finish(self.words[2]);
        if self.has_pending_wakeup {
            self.wake_others();
        }
    }

    /// Stores the coming step, once all have finished with what its line held before, and says that
    /// this rank has finished all steps up to `finished`: the one before at least, which in the
    /// middle of a rooted operation is all that the others hear of this rank.
    fn publish_step(&mut self, payload: &[u8], finished: u64) -> Result<()> {
        self.store_step(payload, finished, CtrlSlot::publish)
    }

    /// The same by one of the line's ways.
    #[inline]
    fn store_step(
        &mut self,
        payload: &[u8],
        finished: u64,
        write_line: impl Fn(&CtrlSlot, u64, u64, &[u64; 3], &[u8]),
    ) -> Result<()> {
        if std::mem::take(&mut self.is_published) {
            return Ok(());
        }
        self.await_finished((self.shm.cursor.step + 1).saturating_sub(CTRL_SLOT_COUNT))?;
        let descriptor_and_label = (&self.words, &self.operation.descriptor.label);
        self.shm.store(descriptor_and_label, payload, finished, write_line);
        Ok(())
    }

    /// Wakes who waits for what was stored by a sequentially consistent read-modify-write, or
    /// before a fence.
    #[inline]
    fn wake_others_fenced(&mut self) {
        self.has_pending_wakeup = false;
        self.shm.wake_others_fenced();
    }

    /// Wakes who waits for what was stored.
    #[inline]
    fn wake_others(&mut self) {
        self.has_pending_wakeup = false;
        self.shm.wake_others();
    }

    /// Waits until every other rank has finished a step.
    #[inline]
    fn await_finished(&mut self, step: u64) -> Result<()> {
        if self.shm.cursor.finished_by_all >= step {
            Ok(())
        } else {
            self.await_finished_slow(step)
        }
    }
}
