//! The observer of a group. It records the group's operations in the flight recorder, and also in
//! the trace if a trace is running. It also adds collectives to the group's call history.
//! Algorithms report their progress to the observer ([`ProgressObserver`]). The observer forwards
//! the waits for other ranks to the trace, and the late arrivals of ranks to the straggler
//! detector.

use crate::algo::ArgumentsHash;
use crate::api::observe::call_history::CallHistory;
use crate::api::observe::deadlock;
use crate::api::observe::recorder::{self, OperationOrigin, OperationRecord};
use crate::api::observe::straggler::StragglerDetector;
use crate::api::observe::trace::{self, GroupTrack, OperationSpan};
use crate::api::p2p::message_descriptor::MessageDescriptor;
use crate::backend::Backend;
use crate::base::deadline::Deadline;
use crate::base::ids::{GroupId, Rank, WorldSize};
use crate::base::label::{Label, LabelledName};
use crate::base::log::LogLevel;
use crate::base::progress_observer::ProgressObserver;
use crate::transport::Descriptor;
use serde_json::Value;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The number of low bits of `latest_arrival` that contain the rank.
const RANK_BITS: u32 = 16;
/// The maximum skew that `latest_arrival` can contain.
const MAX_SKEW_US: u64 = u64::MAX >> RANK_BITS;

/// The observer of one group.
#[derive(Debug)]
pub(in crate::api) struct GroupObserver {
    group: GroupId,
    group_name: String,
    /// Used to look up the names of ranks for log texts.
    backend: Weak<dyn Backend>,
    rank: Rank,
    size: WorldSize,
    straggler_detector: StragglerDetector,
    /// The collectives that this rank has called. The list of groups keeps it after the group was
    /// left.
    pub(super) history: Arc<CallHistory>,
    /// The rank that arrived last in the running operation, if it was late; otherwise 0. The high
    /// bits contain its skew in microseconds, and the low bits contain the rank.
    latest_arrival: AtomicU64,
    track: Arc<GroupTrack>,
}

impl GroupObserver {
    /// Creates the observer of a group. `rank` is this process's rank in the group. `ranks` has the
    /// rank of each member in the outermost group.
    pub(in crate::api) fn new(
        id: GroupId,
        name: &str,
        rank: Rank,
        ranks: &Arc<[Rank]>,
        backend: &Arc<dyn Backend>,
    ) -> Self {
        Self {
            group: id,
            group_name: name.to_owned(),
            backend: Arc::downgrade(backend),
            rank,
            size: ranks.len(),
            latest_arrival: AtomicU64::new(0),
            straggler_detector: StragglerDetector::new(rank, ranks.len()),
            history: Arc::default(),
            track: Arc::new(GroupTrack::new(id, name, rank, ranks)),
        }
    }

    /// Describes the arrival skew of ranks and the last straggler report.
    pub(in crate::api) fn describe(&self) -> (Value, Value) {
        self.straggler_detector.describe()
    }

    /// Resets the latest arrival when an operation starts.
    #[inline]
    pub(in crate::api) fn reset_latest_arrival(&self) {
        self.latest_arrival.store(0, Ordering::Relaxed);
    }

    fn operation_origin(&self, issued_ns: u64) -> OperationOrigin {
        OperationOrigin { group: self.group, rank: self.rank, issued_ns }
    }

    /// Records in a reserved slot that a collective starts now. `words` is the encoded descriptor,
    /// and `hash` the hash of its arguments. The trace does not get this operation. The caller has
    /// the turn of the group's queue.
    #[inline]
    pub(in crate::api) fn record_encoded(
        &self,
        slot: recorder::RecorderSlot,
        words: &[u64; 3],
        hash: ArgumentsHash,
        label: &Label,
    ) -> OperationRecord {
        let origin = self.operation_origin(recorder::recorder_now_ns());
        let words = Descriptor::without_algorithm(words);
        self.history.add_in_turn(words[2], hash, label);
        recorder::begin_encoded(slot, origin, &words, label, true)
    }

    /// Records the issue of a collective in the flight recorder and the trace.
    pub(super) fn record_operation(
        &self,
        slot: recorder::RecorderSlot,
        descriptor: &Descriptor,
        issued: Instant,
        runs: bool,
    ) -> OperationRecord {
        let record = recorder::begin_collective(
            slot,
            self.operation_origin(recorder::recorder_ns(issued)),
            descriptor,
            runs,
        );
        if trace::is_on() {
            record.with_span(OperationSpan::collective(&self.track, descriptor))
        } else {
            record
        }
    }

    /// Records that a message is posted.
    pub(in crate::api) fn record_message(
        &self,
        message: &MessageDescriptor,
        sequence: u64,
        issued_ns: u64,
    ) -> OperationRecord {
        let record = recorder::begin_message(self.operation_origin(issued_ns), message, sequence);
        if trace::is_on() {
            record.with_span(OperationSpan::message(&self.track, message, sequence))
        } else {
            record
        }
    }

    /// Records that a monitored barrier begins.
    pub(in crate::api) fn record_monitored_barrier(
        &self,
        number: u64,
        deadline: &Deadline,
    ) -> OperationRecord {
        let origin = self.operation_origin(recorder::recorder_ns(deadline.started()));
        let timeout_ms = u64::try_from(deadline.timeout().as_millis()).unwrap_or(u64::MAX);
        let record = recorder::begin_monitored_barrier(origin, number, timeout_ms);
        if trace::is_on() {
            record.with_span(OperationSpan::monitored_barrier(&self.track, number, timeout_ms))
        } else {
            record
        }
    }

    fn rank_name(&self, rank: Rank) -> String {
        let backend = self.backend.upgrade();
        let location = backend.as_ref().and_then(|backend| backend.rank_locations().get(rank));
        location.map_or_else(|| format!("rank {rank}"), |location| location.name.to_string())
    }
}

impl ProgressObserver for GroupObserver {
    fn is_tracing_waits(&self) -> bool {
        trace::is_on()
    }

    fn record_start(&self, algorithm: &'static str) {
        self.reset_latest_arrival();
        if trace::is_on() {
            self.track.set_algorithm(algorithm);
        }
    }

    fn record_wait(&self, rank: Rank, began: Instant, ended: Instant) {
        self.track.record_wait(rank, began, ended);
    }

    fn record_late_rank(&self, operation: LabelledName, rank: Rank, by: Duration, alone: Duration) {
        if rank == self.rank || rank >= self.size {
            // The rank comes from the report of another rank. The report is not checked before this
            // point, and it may name this rank.
            return;
        }
        let us = u64::try_from(by.as_micros()).unwrap_or(u64::MAX).min(MAX_SKEW_US);
        self.latest_arrival.fetch_max(us << RANK_BITS | rank as u64, Ordering::Relaxed);
        let Some(report) = self.straggler_detector.record_late_arrival(
            operation.name,
            rank,
            by,
            alone,
            Instant::now(),
        ) else {
            return;
        };
        crate::log!(
            LogLevel::Warn,
            "group {}: {} delays the other ranks: it was the only missing rank for {} ms of the \
             last {} s, in {} operations (last: {operation}); check what the rank does and which \
             other processes its host runs",
            self.group_name,
            self.rank_name(report.rank),
            report.waited.as_millis(),
            report.window.as_secs(),
            report.operations
        );
    }

    fn record_awaited(&self, sequence: u64, ranks: &[Rank]) {
        deadlock::record_awaited_ranks(self.group, self.rank, sequence, ranks);
    }

    fn latest_rank(&self) -> Option<(Rank, Duration)> {
        let latest = self.latest_arrival.load(Ordering::Relaxed);
        let rank = usize::try_from(latest & ((1 << RANK_BITS) - 1)).ok()?;
        (latest != 0).then(|| (rank, Duration::from_micros(latest >> RANK_BITS)))
    }
}

impl Drop for GroupObserver {
    fn drop(&mut self) {
        // The program may end without another call, so the group's operations are written to the
        // trace file now.
        if trace::is_on() {
            trace::flush();
        }
    }
}
