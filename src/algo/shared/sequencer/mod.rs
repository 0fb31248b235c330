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
mod sequencer_core;
mod waits;

pub use sequencer_core::ShmCursor;
pub(in crate::algo) use sequencer_core::{SequencerCore, wake_ranks_fenced};

use crate::algo::arrival_skew::ArrivalSkew;
use crate::algo::operation::{EAGER_BYTES, Operation, RunningAlgorithm};
use crate::base::buffer::{Dst, Src};
use crate::base::error::Result;
use crate::base::ids::{Rank, WorldSize};
use crate::transport::ctrl_slot::CtrlSlot;
use crate::transport::region::{CTRL_SLOT_COUNT, DATA_SLOT_COUNT};
use crate::transport::{Descriptor, PeerName, SharedDomain};
use std::cell::Cell;
use std::time::Duration;

/// The time for which a rank that cannot name the late rank lets other ranks report first.
const NODE_REPORT_GRACE: Duration = Duration::from_millis(150);

/// The sequencer of one operation on one rank.
#[derive(Debug)]
pub struct ShmSequencer<'a> {
    pub(in crate::algo::shared) shm: SequencerCore<'a>,
    operation: &'a Operation<'a>,
    words: [u64; 3],
    report_grace: Duration,
    algorithm: &'static str,
    /// Whether the progress observer has been notified that the operation starts.
    has_recorded_start: Cell<bool>,
    /// Whether this rank has published a step as finished without a wakeup. A rank that runs ahead
    /// may sleep until this rank has finished that step.
    has_pending_wakeup: bool,
    /// Whether the ranks have decided already if the operation accesses arenas in place.
    pub(in crate::algo::shared) is_arena_use_decided: bool,
    arrival_skew: ArrivalSkew<'a>,
}

impl<'a> ShmSequencer<'a> {
    /// Starts an operation that runs this algorithm.
    pub fn begin(
        domain: &'a dyn SharedDomain,
        cursor: &'a mut ShmCursor,
        operation: &'a Operation<'a>,
        algorithm: RunningAlgorithm,
    ) -> Self {
        // The words contain the algorithm's number, so ranks that chose different algorithms detect
        // a mismatch.
        let words = operation.descriptor.encode_with(algorithm.number);
        let sequencer = Self::of(domain, cursor, operation, algorithm.name, words);
        sequencer.shm.enter(&words, &operation.descriptor.label);
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

    /// Continues an operation whose first and only step the fast path has published, with these
    /// words of the descriptor.
    pub(in crate::algo) fn resume(
        domain: &'a dyn SharedDomain,
        cursor: &'a mut ShmCursor,
        operation: &'a Operation<'a>,
        words: [u64; 3],
    ) -> Self {
        let sequencer = Self::of(domain, cursor, operation, "", words);
        // The caller has recorded the start.
        sequencer.has_recorded_start.set(true);
        Self { has_pending_wakeup: true, ..sequencer }
    }

    fn of(
        domain: &'a dyn SharedDomain,
        cursor: &'a mut ShmCursor,
        operation: &'a Operation<'a>,
        algorithm: &'static str,
        words: [u64; 3],
    ) -> Self {
        Self {
            shm: SequencerCore::of(domain, cursor),
            operation,
            words,
            report_grace: NODE_REPORT_GRACE,
            algorithm,
            has_recorded_start: Cell::new(false),
            has_pending_wakeup: false,
            is_arena_use_decided: false,
            arrival_skew: ArrivalSkew::of(operation),
        }
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
        self.publish_and_wake(payload, self.shm.cursor.step)
    }

    /// Publishes the next step and marks it as finished, because this rank reads nothing of it.
    ///
    /// # Errors
    /// As [`ShmSequencer::next_slot`].
    pub fn publish_finished(&mut self, payload: &[u8]) -> Result<()> {
        self.publish_and_wake(payload, self.shm.cursor.step + 1)
    }

    #[inline]
    fn publish_and_wake(&mut self, payload: &[u8], finished: u64) -> Result<()> {
        self.store_step(payload, finished, CtrlSlot::publish)?;
        self.has_pending_wakeup = false;
        self.shm.wake_others_fenced();
        self.record_start();
        Ok(())
    }

    /// Publishes the next step with an inline payload, and polls once for the same step of every
    /// other rank.
    ///
    /// # Errors
    /// As [`ShmSequencer::next_slot`].
    pub fn publish_and_poll(&mut self, payload: &[u8]) -> Result<()> {
        if self.is_oversubscribed() {
            // On an oversubscribed host the waiting ranks sleep, so this rank wakes them first.
            return self.publish(payload);
        }
        // The control slot travels to the peers' cores while this rank notifies the observer and
        // polls the peers' control slots.
        self.store_step(payload, self.shm.cursor.step, CtrlSlot::publish_unfenced)?;
        self.record_start();
        self.others().for_each(|rank| self.poll_first(rank));
        self.wake_others();
        Ok(())
    }

    /// Polls for the first time whether a rank has published the current step.
    #[inline]
    pub fn poll_first(&mut self, rank: Rank) {
        self.shm.poll_first(rank);
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

    /// Finishes an operation within a node, and records whether it was small and had no long wait.
    pub fn finish_within_node(self) {
        if self.operation.bytes() <= EAGER_BYTES && !self.arrival_skew.has_long_wait() {
            self.operation.observer.record_short_wait();
        }
        self.finish();
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

    /// Publishes the next step by `write_line`, after all ranks have finished with the control
    /// slot's old contents. Marks all steps up to `finished` as finished. `finished` is at least
    /// the previous step. In the middle of a rooted operation, the peers learn this rank's progress
    /// only from this mark.
    #[inline]
    fn store_step(
        &mut self,
        payload: &[u8],
        finished: u64,
        write_line: impl Fn(&CtrlSlot, u64, u64, &[u64; 3], &[u8]),
    ) -> Result<()> {
        self.await_finished((self.shm.cursor.step + 1).saturating_sub(CTRL_SLOT_COUNT))?;
        let label = &self.operation.descriptor.label;
        self.shm.store(&self.words, label, payload, finished, write_line);
        Ok(())
    }

    /// Issues a fence, then wakes the peers that wait for this rank's last store.
    #[inline]
    pub(in crate::algo::shared) fn wake_others(&mut self) {
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
