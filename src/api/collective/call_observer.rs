//! The progress observer of one blocking call. The back end reports the progress of the operation
//! to this observer. The observer forwards the reports to the group's observer, and owns the call's
//! entry in the flight recorder.
//!
//! The entry is written when the back end reports the start of the operation. To save time, a back
//! end may first send the data that other ranks wait for, and then report the start. Then the entry
//! is written while the other ranks' data is in transit. A back end must report the start before
//! any long wait.

use crate::api::collective::call::Call;
use crate::api::group::process_group::Group;
use crate::api::observe::call_history::HistoryMoment;
use crate::api::observe::recorder::{OperationRecord, RecorderSlot};
use crate::base::deadline::LazyDeadline;
use crate::base::error::Result;
use crate::base::gpu::EnqueuedOperationSlot;
use crate::base::ids::Rank;
use crate::base::label::LabelledName;
use crate::base::progress_observer::ProgressObserver;
use crate::transport::Descriptor;
use std::cell::{Cell, OnceCell};
use std::time::{Duration, Instant};

/// The reserved slot of a call in the flight recorder, and the call's entry if it has been written.
#[derive(Debug)]
pub(super) struct CallRecord {
    pub(super) slot: RecorderSlot,
    pub(super) record: Option<OperationRecord>,
}

/// The observer of one call.
#[derive(Debug)]
pub(super) struct CallObserver<'a> {
    group: &'a Group,
    call: &'a Call<'a>,
    descriptor: &'a Descriptor,
    deadline: &'a LazyDeadline,
    slot: RecorderSlot,
    record: OnceCell<OperationRecord>,
    /// True if the back end reported that the operation waited only for a short time.
    was_short: Cell<bool>,
    /// True if the call had to wait for its turn.
    has_waited: Cell<bool>,
    /// True if the call has the turn of the group's queue.
    has_turn: Cell<bool>,
}

impl<'a> CallObserver<'a> {
    /// Creates the observer of a call that is issued now, and reserves a slot for it.
    pub(super) fn new(
        group: &'a Group,
        call: &'a Call<'a>,
        descriptor: &'a Descriptor,
        deadline: &'a LazyDeadline,
    ) -> Self {
        let reserved = CallRecord { slot: RecorderSlot::reserve(), record: None };
        Self {
            has_turn: Cell::new(false),
            ..Self::with_turn(group, call, descriptor, deadline, reserved)
        }
    }

    /// Creates the observer of a call in its turn. The call has a reserved slot, and possibly an
    /// entry.
    pub(super) fn with_turn(
        group: &'a Group,
        call: &'a Call<'a>,
        descriptor: &'a Descriptor,
        deadline: &'a LazyDeadline,
        CallRecord { slot, record }: CallRecord,
    ) -> Self {
        let record = record.map_or_else(OnceCell::new, OnceCell::from);
        let (was_short, has_waited) = (Cell::new(false), Cell::new(false));
        let has_turn = Cell::new(true);
        Self { group, call, descriptor, deadline, slot, record, was_short, has_waited, has_turn }
    }

    /// Returns the call's entry. Writes it if it has not been written.
    fn ensure_record(&self) -> &OperationRecord {
        self.record.get_or_init(|| {
            let (issued, runs) = (self.deadline.get_or_start().started(), !self.has_waited.get());
            let moment = match self.has_turn.get() {
                true => HistoryMoment::InTurn,
                false => HistoryMoment::Concurrent,
            };
            let record =
                self.group.record_in_slot(self.slot, self.descriptor, issued, runs, moment);
            if self.call.kind().has_per_rank_counts() {
                record.add_sizes(&self.call.recorded_sizes());
            }
            if runs {
                record.mark_running();
            }
            record
        })
    }

    /// Writes the entry of a call that must wait for its turn.
    #[cold]
    pub(super) fn begin_waiting(&self) {
        self.has_waited.set(true);
        self.ensure_record();
    }

    /// Records the start of the call's turn. `needs_record` is true if the call waits for other
    /// ranks before it reaches the back end. Then the entry is written immediately.
    pub(super) fn begin_running(&self, needs_record: bool) {
        self.has_turn.set(true);
        if needs_record {
            self.ensure_record();
        }
        if let Some(record) = self.record.get() {
            record.mark_running();
        }
    }

    /// Records that the call gives back its turn.
    pub(super) fn end_turn(&self) {
        self.has_turn.set(false);
    }

    /// Adds the device time of the operation in `slot` to the call's entry when it is known.
    pub(super) fn listen_for_device_time(&self, slot: &EnqueuedOperationSlot) {
        self.ensure_record().device_time_record().listen(slot);
    }

    /// Records the end of the call.
    pub(super) fn end(self, outcome: &Result<()>) {
        self.ensure_record();
        let Some(record) = self.record.into_inner() else { return };
        match self.was_short.get() && !self.has_waited.get() {
            true => record.end_without_clock(outcome),
            false => record.end(outcome),
        }
    }
}

impl ProgressObserver for CallObserver<'_> {
    fn is_tracing_waits(&self) -> bool {
        self.group.observer.is_tracing_waits()
    }

    fn record_start(&self, algorithm: &'static str) {
        self.ensure_record();
        self.group.observer.record_start(algorithm);
    }

    fn record_short_wait(&self) {
        self.was_short.set(true);
    }

    fn record_wait(&self, rank: Rank, began: Instant, ended: Instant) {
        self.group.observer.record_wait(rank, began, ended);
    }

    fn record_late_rank(&self, operation: LabelledName, rank: Rank, by: Duration, alone: Duration) {
        self.group.observer.record_late_rank(operation, rank, by, alone);
    }

    fn record_awaited(&self, sequence: u64, ranks: &[Rank]) {
        self.group.observer.record_awaited(sequence, ranks);
    }

    fn latest_rank(&self) -> Option<(Rank, Duration)> {
        self.group.observer.latest_rank()
    }
}
