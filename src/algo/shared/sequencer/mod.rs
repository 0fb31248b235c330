//! The shared-memory sequencer: the protocol by which the ranks of a shared-memory domain publish
//! control slots, read payloads and reuse slots.
//!
//! The operations of a group are a sequence of *steps*, numbered from 1. Step n is the same step on
//! every rank: the steps that an operation takes depend only on facts that all ranks agree on. In
//! each step a rank may publish one control slot ([`CtrlSlot`]), with an inline payload or a filled
//! data slot.
//!
//! - **Arrival.** A control slot that holds step n was published by a rank that has finished
//!   reading every control slot and data slot of step n-1. Algorithms keep this invariant: they
//!   publish step n+1 only after their last read of step n.
//! - **Reuse.** A control slot is reused after 64 steps, a data slot after 4. Before the owner
//!   overwrites step n-k, it must know that every rank has finished that step. If all ranks wait
//!   for each other, the owner learns this from the peers' later arrivals, at no cost. Otherwise it
//!   reads the finished step in the peers' progress words. Therefore a staged operation needs no
//!   barrier at its end, and a root may run ahead of its readers.
//! - **Agreement.** Each control slot carries the call fingerprint, a hash chained over all
//!   operations that its owner has issued so far. On arrival, the reader compares it with its own
//!   fingerprint. Two ranks that ever issued different operations therefore detect this at the
//!   first control slot that one reads of the other, and report their first mismatch. While a rank
//!   waits for a control slot of a peer, it also compares the peer's newest published control slot,
//!   because the peer may have stopped at an earlier operation. An operation over messages alone
//!   takes one step only for this comparison; no rank reads a payload of that step.
//! - **Wakeup.** A rank wakes its peers after the store that they wait for, so no wakeup is lost.
//!   One store has no wakeup: a rank finishes its last step after the wakeup of that step. Only a
//!   rank that is ahead by all its data slots or control slots waits for that store. Such a wait
//!   therefore sleeps in short slices and polls again. A rank that reads nothing of the step that
//!   it publishes marks that step as finished before the wakeup.
//!
//! Any failure is written to the domain's abort record, which ends the waits of all ranks.

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

/// The time for which a rank that cannot name the late rank lets other ranks report first.
const NODE_REPORT_GRACE: Duration = Duration::from_millis(150);

/// The state that a rank keeps between the operations of one domain.
#[derive(Debug)]
pub struct ShmCursor {
    /// The last step that this rank has published.
    step: u64,
    /// The call fingerprint of all steps up to `step`.
    call_fingerprint: u64,
    /// For each rank, a step that this rank knows it has finished.
    finished_steps: Vec<u64>,
    /// A step that all other ranks have finished.
    finished_by_all: u64,
    /// For each rank, whether its control slot was already published at this rank's first poll of
    /// the last step in which this rank polled for it.
    is_early_rank: Vec<bool>,
    /// The word for the read-modify-write that acts as a fence.
    fence_word: AtomicU64,
    arena_access: ArenaAccess,
}

impl ShmCursor {
    /// Returns the cursor of a new group of `size` ranks.
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

    /// Returns the state of the operations that accessed arenas in place.
    pub fn arena_access(&self) -> &ArenaAccess {
        &self.arena_access
    }
}

/// The sequencer of one operation on one rank.
#[derive(Debug)]
pub struct ShmSequencer<'a> {
    shm: SequencerCore<'a>,
    operation: &'a Operation<'a>,
    words: [u64; 3],
    report_grace: Duration,
    algorithm: &'static str,
    /// Whether the progress observer has been notified that the operation starts.
    has_recorded_start: Cell<bool>,
    /// Whether this rank has published a step as finished without a wakeup. A rank that runs ahead
    /// may sleep until this rank has finished that step.
    has_pending_wakeup: bool,
    /// Whether the first step is already published.
    is_published: bool,
    /// Whether the ranks have decided already if the operation accesses arenas in place.
    is_arena_use_decided: bool,
    arrival_skew: ArrivalSkew<'a>,
}

impl<'a> ShmSequencer<'a> {
    /// Starts an operation that runs the algorithm with this name and number.
    pub fn begin(
        domain: &'a dyn SharedDomain,
        cursor: &'a mut ShmCursor,
        operation: &'a Operation<'a>,
        (algorithm, number): (&'static str, u8),
    ) -> Self {
        // The words contain the algorithm's number, so ranks that chose different algorithms detect
        // a mismatch.
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
            // A tracing observer needs the exact start time.
            sequencer.record_start();
        }
        sequencer
    }

    /// Notifies the observer once that the operation starts. This happens after this rank has
    /// published its first step, so that the peers do not wait for the notification, and before
    /// this rank's first long wait.
    #[inline]
    pub fn record_start(&self) {
        if !self.has_recorded_start.replace(true) {
            self.operation.observer.record_start(self.algorithm);
        }
    }

    /// Sets the report grace period, for operations between nodes. At the deadline, a rank that
    /// cannot name the late rank lets other ranks report first for this time.
    #[must_use]
    pub fn with_report_grace(mut self, report_grace: Duration) -> Self {
        self.report_grace = report_grace;
        self
    }

    /// Returns this rank.
    pub fn rank(&self) -> Rank {
        self.shm.rank
    }

    /// Returns the number of ranks.
    pub fn size(&self) -> WorldSize {
        self.shm.size()
    }

    /// Returns the shared-memory domain.
    pub(super) fn domain(&self) -> &'a dyn SharedDomain {
        self.shm.domain
    }

    /// Returns this rank's state of the operations that accessed arenas in place.
    pub(super) fn arena_access(&self) -> &ArenaAccess {
        &self.shm.cursor.arena_access
    }

    /// Returns whether the ranks have decided already if the operation accesses arenas in place.
    pub(super) fn is_arena_use_decided(&self) -> bool {
        self.is_arena_use_decided
    }

    /// Marks that decision as made, so that the operation does not repeat it.
    pub(super) fn decide_arena_use(&mut self) {
        self.is_arena_use_decided = true;
    }

    /// Returns the state of [`ShmSequencer::arena_access`] for changes.
    pub(super) fn arena_access_mut(&mut self) -> &mut ArenaAccess {
        &mut self.shm.cursor.arena_access
    }

    /// Returns the name of a rank.
    pub(super) fn peer(&self, rank: Rank) -> &'a PeerName {
        self.shm.domain.peer(rank)
    }

    /// Returns the operation descriptor, on which all ranks agree.
    pub(super) fn descriptor(&self) -> &'a Descriptor {
        &self.operation.descriptor
    }

    /// Returns the size of a data slot in bytes.
    pub fn slot_bytes(&self) -> usize {
        self.shm.region.geometry().slot_bytes
    }

    /// Returns whether the host is oversubscribed, so that each wait takes a context switch. The
    /// answer is the same on all ranks.
    pub fn is_oversubscribed(&self) -> bool {
        self.shm.domain.wait_policy().is_oversubscribed
    }

    /// Iterates over the other ranks, starting with the next rank, so that the ranks do not all
    /// read from the same rank at once.
    pub fn others(&self) -> impl Iterator<Item = Rank> + use<> {
        self.shm.others()
    }

    /// Returns whether this rank's data slot for the next step is free.
    pub fn has_free_slot(&self) -> bool {
        let step = (self.shm.cursor.step + 1).saturating_sub(DATA_SLOT_COUNT);
        let is_done = |rank: Rank| {
            self.shm.cursor.finished_steps[rank] >= step
                || self.shm.region.progress(rank).finished_step() >= step
        };
        self.others().all(is_done)
    }

    /// Returns this rank's data slot for the next step, after every rank has finished reading the
    /// slot's old contents.
    ///
    /// # Errors
    /// The reason why the wait ended: `Timeout`, `PeerFailed`, `Aborted`.
    pub fn next_slot(&mut self) -> Result<Dst<'a>> {
        self.await_finished((self.shm.cursor.step + 1).saturating_sub(DATA_SLOT_COUNT))?;
        self.shm.region.own_data_slot(self.shm.rank, self.shm.cursor.step + 1)
    }

    /// Returns all data slots of this rank, as private scratch memory until this rank publishes the
    /// next step. The caller must have seen that all ranks published the current step
    /// ([`ShmSequencer::await_all`]): then they have finished reading the old contents.
    ///
    /// # Errors
    /// `OutOfMemory`, `System`.
    pub fn own_slots(&self) -> Result<Dst<'a>> {
        self.shm.region.own_data_slots(self.shm.rank)
    }

    /// Returns [`ShmSequencer::next_part`], or `None` if the fast path has already filled that part
    /// and published the step.
    ///
    /// # Errors
    /// As [`ShmSequencer::next_slot`].
    pub(super) fn unpublished_part(&mut self, slot_bytes_used: usize) -> Result<Option<Dst<'a>>> {
        if self.is_published { Ok(None) } else { self.next_part(slot_bytes_used).map(Some) }
    }

    /// Returns the first part of [`ShmSequencer::next_slot`], for a step in which every rank uses
    /// at most `slot_bytes_used` bytes of its data slot. [`ShmSequencer::part`] reads it.
    ///
    /// # Errors
    /// As [`ShmSequencer::next_slot`].
    pub fn next_part(&mut self, slot_bytes_used: usize) -> Result<Dst<'a>> {
        self.await_finished((self.shm.cursor.step + 1).saturating_sub(DATA_SLOT_COUNT))?;
        self.shm.region.own_slot_part(self.shm.rank, self.shm.cursor.step + 1, slot_bytes_used)
    }

    /// Publishes the next step with an inline payload, and wakes the ranks that wait for it.
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

    /// Publishes the next step with an inline payload, and waits until every other rank has
    /// published it too.
    ///
    /// # Errors
    /// As [`ShmSequencer::await_all`].
    pub fn publish_and_await_all(&mut self, payload: &[u8]) -> Result<()> {
        if self.is_oversubscribed() {
            // On an oversubscribed host the waiting ranks sleep, so this rank wakes them first.
            self.publish(payload)?;
            return self.await_all();
        }
        // The control slot travels to the peers' cores while this rank notifies the observer and
        // polls the peers' control slots.
        self.store_step(payload, self.shm.cursor.step, CtrlSlot::publish_unfenced)?;
        self.record_start();
        self.others().for_each(|rank| self.poll_first(rank));
        self.wake_others();
        self.await_all()
    }

    /// Polls for the first time whether a rank has published the current step.
    #[inline]
    pub fn poll_first(&mut self, rank: Rank) {
        self.shm.poll_first(rank);
    }

    /// Publishes the next step and marks it as finished, because this rank reads nothing of it.
    ///
    /// # Errors
    /// As [`ShmSequencer::next_slot`].
    pub fn publish_finished(&mut self, payload: &[u8]) -> Result<()> {
        self.publish_step(payload, self.shm.cursor.step + 1)?;
        self.wake_others_fenced();
        self.record_start();
        Ok(())
    }

    /// Publishes the next step without a wakeup, because no rank waits for this rank in it. A rank
    /// that waits until this rank has finished the step is woken by the next step or at the end of
    /// the operation.
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
    /// As [`ShmSequencer::next_slot`], and `Mismatch` if a rank called a different operation.
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
        let slot = self.shm.region.ctrl_slot(rank, step);
        if slot.step() < step {
            self.await_ctrl_slot(rank, slot)?;
        }
        if !self.shm.verify_rank(rank) {
            return Err(self.fail(self.mismatch_error(rank)));
        }
        Ok(())
    }

    /// Reads the inline payload of a rank that has published the current step.
    pub fn payload(&self, rank: Rank, into: &mut [u8]) {
        self.shm.region.ctrl_slot(rank, self.shm.cursor.step).read_payload(into);
    }

    /// Returns the contributions of the current step, which all senders must have published.
    /// `own_payload` is this rank's payload. `slot_bytes_used` is the number of bytes in each data
    /// slot, or 0 for inline payloads. `resolved_fold` is the fold of a reduction.
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

    /// Returns the data slot of a rank that has published the current step.
    pub fn slot(&self, rank: Rank) -> Src<'a> {
        self.shm.region.data_slot(rank, self.shm.cursor.step)
    }

    /// Returns the used part of the data slot of a rank that has published the current step, in
    /// which every rank uses at most `slot_bytes_used` bytes.
    pub fn part(&self, rank: Rank, slot_bytes_used: usize) -> Src<'a> {
        self.shm.region.slot_part(rank, self.shm.cursor.step, slot_bytes_used)
    }

    /// Marks all steps so far as finished in the middle of a rooted operation, so that a rank that
    /// runs ahead may reuse their slots.
    pub fn checkpoint(&mut self) {
        self.shm.region.progress(self.shm.rank).finish_step(self.shm.cursor.step);
        self.wake_others();
    }

    /// Returns whether the operation had a long wait.
    pub fn has_waited_long(&self) -> bool {
        self.arrival_skew.has_long_wait()
    }

    /// Finishes the operation: this rank reads nothing of it any more.
    pub fn finish(mut self) {
        // A rank that neither published nor waited has not notified the observer yet.
        self.record_start();
        self.shm.finish(self.words[2]);
        if self.has_pending_wakeup {
            self.wake_others();
        }
    }

    /// Publishes the next step, after all ranks have finished with the control slot's old contents.
    /// Marks all steps up to `finished` as finished. `finished` is at least the previous step. In
    /// the middle of a rooted operation, the peers learn this rank's progress only from this mark.
    fn publish_step(&mut self, payload: &[u8], finished: u64) -> Result<()> {
        self.store_step(payload, finished, CtrlSlot::publish)
    }

    /// Does the work of [`ShmSequencer::publish_step`], with `write_line` as the function that
    /// writes the control slot.
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

    /// Wakes the peers that wait for this rank's last store. That store must be a sequentially
    /// consistent read-modify-write, or a fence must follow it.
    #[inline]
    fn wake_others_fenced(&mut self) {
        self.has_pending_wakeup = false;
        self.shm.wake_others_fenced();
    }

    /// Issues a fence, then wakes the peers that wait for this rank's last store.
    #[inline]
    fn wake_others(&mut self) {
        self.has_pending_wakeup = false;
        self.shm.wake_others();
    }

    /// Waits until every other rank has finished `step`.
    #[inline]
    fn await_finished(&mut self, step: u64) -> Result<()> {
        if self.shm.cursor.finished_by_all >= step {
            Ok(())
        } else {
            self.await_finished_slow(step)
        }
    }
}
