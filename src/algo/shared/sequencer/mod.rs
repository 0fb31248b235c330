//! The shared-memory sequencer: the protocol by which the ranks of a shared-memory domain (the
//! ranks of a group on one node) publish control slots, read payloads and reuse slots.
//!
//! The operations of a group are a sequence of *steps*, numbered from 1. Step n is the same step on
//! every rank, because the steps of an operation depend only on facts that all ranks agree on. In
//! each step, a rank may publish one control slot ([`CtrlSlot`]), with an inline payload or a
//! filled data slot. Each rank has 64 control slots and 4 data slots:
//!
//! ```text
//! step           1  2  3  4  5  ...  64  65  66
//! control slot   1  2  3  4  5  ...   0   1   2
//! data slot      1  2  3  0  1  ...   0   1   2
//! ```
//!
//! - **Arrival.** A rank *arrives* at step n when it publishes its control slot of step n. By then,
//!   it has finished reading the control slots and data slots of step n-1. Algorithms keep this
//!   invariant: they publish step n+1 only after their last read of step n.
//! - **Reuse.** Before a rank overwrites a slot, it must know that every rank has finished the step
//!   that the slot contains. If all ranks wait for each other in each step, the arrivals of the
//!   peers at later steps show this at no cost. Otherwise the rank reads the last finished step
//!   from the peers' progress words. Therefore a staged operation needs no barrier at its end, and
//!   a root may run ahead of its readers.
//! - **Agreement.** Each control slot contains the call fingerprint of its owner, a hash chained
//!   over all operations that the owner has issued. A reader compares this fingerprint with its
//!   own. Two ranks that issued different operations therefore detect the mismatch when one of them
//!   reads the next control slot of the other, and report the first operation in which they differ.
//!   A peer with a different operation may never publish the step that a rank waits for. A waiting
//!   rank therefore also compares the newest control slot that the peer has published. An operation
//!   over messages alone takes one step only for this comparison; no rank reads a payload of that
//!   step.
//! - **Wakeup.** A rank wakes its sleeping peers after the store that they wait for, so no wakeup
//!   is lost. One store has no wakeup: the store by which a rank marks its last step as finished.
//!   Only a peer that cannot continue because all its data slots or control slots are in use waits
//!   for that store. Such a peer sleeps in short slices and polls after each slice. A rank that
//!   reads nothing in the step that it publishes marks the step as finished before the wakeup.
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

/// The report grace period within a node: the time for which a rank that cannot name the late rank
/// waits, after its deadline, for the report of another rank.
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
    /// Whether this rank has published a step without a wakeup. A rank that runs ahead may sleep
    /// until this rank has finished that step, so this rank must wake its peers later.
    has_pending_wakeup: bool,
    /// Whether the ranks have already decided if the operation accesses arenas in place.
    pub(in crate::algo::shared) is_arena_use_decided: bool,
    arrival_skew: ArrivalSkew<'a>,
    /// Whether the kernel refused an access of this rank to the memory of a peer in this operation.
    pub(in crate::algo::shared) has_refused_access: Cell<bool>,
}

impl<'a> ShmSequencer<'a> {
    /// Starts an operation that runs this algorithm.
    pub fn begin(
        domain: &'a dyn SharedDomain,
        cursor: &'a mut ShmCursor,
        operation: &'a Operation<'a>,
        algorithm: RunningAlgorithm,
    ) -> Self {
        // The encoded descriptor contains the algorithm's number, so ranks that selected different
        // algorithms detect a mismatch.
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

    /// Continues an operation whose only step the fast path has published. `words` is the encoded
    /// descriptor of the operation.
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
            has_refused_access: Cell::new(false),
        }
    }

    /// Notifies the observer that the operation starts. Only the first call notifies. A rank
    /// notifies after it has published its first step, so that the peers do not wait for the
    /// notification, and before its first long wait.
    #[inline]
    pub fn record_start(&self) {
        if !self.has_recorded_start.replace(true) {
            self.operation.observer.record_start(self.algorithm);
        }
    }

    /// Sets the report grace period. Operations between nodes use a longer period than operations
    /// within a node.
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

    /// Returns whether this rank's data slot for the next step is free, that is, whether all ranks
    /// have finished reading its old contents.
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

    /// Returns all data slots of this rank. They are private scratch memory until this rank
    /// publishes the next step. Before this call, the caller must have waited until all ranks have
    /// published the current step ([`ShmSequencer::await_all`]), because these ranks have finished
    /// reading the old contents of the slots.
    ///
    /// # Errors
    /// `OutOfMemory`, `System`.
    pub fn own_slots(&self) -> Result<Dst<'a>> {
        self.shm.region.own_data_slots(self.shm.rank)
    }

    /// Returns the part of this rank's data slot for the next step, after every rank has finished
    /// reading the slot's old contents. The part has `slot_bytes_used` bytes. Successive uses of a
    /// slot return different parts if the slot has room for several. All ranks must pass the same
    /// `slot_bytes_used` for a step. The peers read the data by [`ShmSequencer::part`].
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
            // On an oversubscribed host, waiting ranks sleep, so this rank wakes them before it
            // polls.
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

    /// Publishes the next step without a wakeup. The caller may use this function if no rank waits
    /// for this rank's control slot of the step. A rank that waits until this rank has finished the
    /// step is woken when this rank publishes its next step or finishes the operation.
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

    /// Returns the part of the data slot of a rank that has published the current step. The part
    /// has `slot_bytes_used` bytes. The value must be the same as in [`ShmSequencer::next_part`].
    pub fn part(&self, rank: Rank, slot_bytes_used: usize) -> Src<'a> {
        self.shm.region.slot_part(rank, self.shm.cursor.step, slot_bytes_used)
    }

    /// Marks all steps up to the current step as finished, and wakes the peers. A rank calls this
    /// in the middle of a rooted operation, so that a peer that runs ahead may reuse the slots of
    /// these steps.
    pub fn checkpoint(&mut self) {
        self.shm.region.progress(self.shm.rank).finish_step(self.shm.cursor.step);
        self.wake_others();
    }

    /// Finishes an operation within a node. If the operation was small and had no long wait,
    /// notifies the observer of that.
    pub fn finish_within_node(self) {
        if self.operation.bytes() <= EAGER_BYTES && !self.arrival_skew.has_long_wait() {
            self.operation.observer.record_short_wait();
        }
        self.finish();
    }

    /// Finishes the operation. After this call, this rank reads no slot of the operation any more.
    pub fn finish(mut self) {
        // A rank that neither published nor waited has not notified the observer yet.
        self.record_start();
        self.shm.finish(self.words[2]);
        if self.has_pending_wakeup {
            self.wake_others();
        }
    }

    /// Waits until all ranks have finished reading the old contents of the next step's control
    /// slot, marks all steps up to `finished` as finished, and publishes the next step by
    /// `write_line`. `finished` is at least the previous step. In the middle of a rooted operation,
    /// this mark is the only information from which the peers learn this rank's progress.
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
