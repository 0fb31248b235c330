//! Records the issue of a collective in everything that keeps it: the flight recorder, the trace
//! and the call history of the group.

use crate::api::group::process_group::Group;
use crate::api::observe::call_history::HistoryMoment;
use crate::api::observe::recorder::{OperationRecord, RecorderSlot};
use crate::transport::Descriptor;
use std::time::Instant;

impl Group {
    /// Records the issue of a collective in the flight recorder, the trace and the call history.
    /// `runs` is true if the collective runs immediately, and false if it waits for earlier
    /// collectives.
    pub(in crate::api) fn record_collective(
        &self,
        descriptor: &Descriptor,
        issued: Instant,
        runs: bool,
    ) -> OperationRecord {
        let slot = RecorderSlot::reserve();
        self.record_in_slot(slot, descriptor, issued, runs, HistoryMoment::Concurrent)
    }

    /// Records the issue of a collective, like [`Self::record_collective`], in a reserved slot. If
    /// the group has failed, `moment` does not matter.
    pub(in crate::api) fn record_in_slot(
        &self,
        slot: RecorderSlot,
        descriptor: &Descriptor,
        issued: Instant,
        runs: bool,
        moment: HistoryMoment,
    ) -> OperationRecord {
        let has_failed = self.failure().is_some();
        let moment = if has_failed { HistoryMoment::AfterFailure } else { moment };
        self.observer.history.add_at(moment, descriptor);
        self.observer.record_operation(slot, descriptor, issued, runs)
    }
}
