//! The progress observer of one blocking call. The back end reports the progress of the operation
//! to this observer. The observer forwards the reports to the group's observer, and owns the call's
//! entry in the flight recorder.
//!
//! The entry is written when the back end reports the start of the operation. To save time, a back
//! end may first send the data that other ranks wait for, and then report the start. Then the entry
//! is written while the other ranks' data is in transit. A back end must report the start before
//! any long wait.

use crate::api::collective::call::Call;
use crate::api::group::group_observer::GroupObserver;
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
    observer: &'a GroupObserver,
    call: &'a Call<'a>,
    descriptor: &'a Descriptor,
    deadline: &'a LazyDeadline,
    slot: RecorderSlot,
    record: OnceCell<OperationRecord>,
    /// True if the back end reported that the operation waited only for a short time.
    was_short: Cell<bool>,
    /// True if the call had to wait for its turn.
    has_waited: Cell<bool>,
}

impl<'a> CallObserver<'a> {
    /// Creates the observer of a call that is issued now, and reserves a slot for it.
    pub(super) fn new(
        observer: &'a GroupObserver,
        call: &'a Call<'a>,
        descriptor: &'a Descriptor,
        deadline: &'a LazyDeadline,
    ) -> Self {
        Self::with_record(
            observer,
            call,
            descriptor,
            deadline,
            CallRecord { slot: RecorderSlot::reserve(), record: None },
        )
    }

    /// Creates the observer of a call that already has a reserved slot, and possibly an entry.
    pub(super) fn with_record(
        observer: &'a GroupObserver,
        call: &'a Call<'a>,
        descriptor: &'a Descriptor,
        deadline: &'a LazyDeadline,
        CallRecord { slot, record }: CallRecord,
    ) -> Self {
        let record = record.map_or_else(OnceCell::new, OnceCell::from);
        let (was_short, has_waited) = (Cell::new(false), Cell::new(false));
        Self { observer, call, descriptor, deadline, slot, record, was_short, has_waited }
    }

    /// Returns the call's entry. Writes it if it has not been written.
    fn ensure_record(&self) -> &OperationRecord {
        self.record.get_or_init(|| {
            let (issued, runs) = (self.deadline.get_or_start().started(), !self.has_waited.get());
            let record = self.observer.record_in_slot(self.slot, self.descriptor, issued, runs);
            record.add_sizes(&self.call.recorded_sizes());
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
        if needs_record {
            self.ensure_record();
        }
        if let Some(record) = self.record.get() {
            record.mark_running();
        }
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
        self.observer.is_tracing_waits()
    }

    fn record_start(&self, algorithm: &'static str) {
        self.ensure_record();
        self.observer.record_start(algorithm);
    }

    fn record_short_wait(&self) {
        self.was_short.set(true);
    }

    fn record_wait(&self, rank: Rank, began: Instant, ended: Instant) {
        self.observer.record_wait(rank, began, ended);
    }

    fn record_late_rank(&self, operation: LabelledName, rank: Rank, by: Duration, alone: Duration) {
        self.observer.record_late_rank(operation, rank, by, alone);
    }

    fn latest_rank(&self) -> Option<(Rank, Duration)> {
        self.observer.latest_rank()
    }
}
