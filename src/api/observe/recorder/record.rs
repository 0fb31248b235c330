//! Records operations in the recorder's ring of entries: their issue, the start of their turn (when
//! earlier collectives of the group have ended), and their end.
//!
//! Recording takes about ten relaxed stores to one entry that no other thread writes. The entry's
//! stamp is 0 while the entry is written, so a reader drops an incomplete entry.

use super::details::update_details;
use super::groups::group_name;
use super::message_words::{MONITORED_BARRIER_KIND, encode_message};
use super::ring::{self, DONE, RECORDER, RUNNING, RecorderEntry, WAITING};
use super::ring::{entry, recorder_now_ns, short_group_id};
use super::snapshot::EntrySnapshot;
use crate::api::observe::operation_details::{CallSizes, OperationDetails};
use crate::api::observe::trace::{DeviceSpan, OperationSpan};
use crate::api::p2p::message_descriptor::MessageDescriptor;
use crate::base::error::Result;
use crate::base::ids::{GroupId, Rank};
use crate::base::label::Label;
use crate::base::log::{self, LogLevel};
use crate::transport::Descriptor;
use std::sync::atomic::{Ordering, fence};

/// The record of a running operation.
#[derive(Debug)]
pub struct OperationRecord {
    number: u64,
    entry: &'static RecorderEntry,
    /// True if the operation waited for its turn when it was recorded.
    is_waiting: bool,
    /// True if the log has a line at the end of the operation.
    is_logged: bool,
    /// The span of the operation in the trace, if a trace is written.
    span: Option<Box<OperationSpan>>,
}

/// The group and rank of an operation, and its time of issue.
#[derive(Clone, Copy, Debug)]
pub struct OperationOrigin {
    /// The group of the operation.
    pub group: GroupId,
    /// This process's rank in the group.
    pub rank: Rank,
    /// The time of issue in nanoseconds since the recorder started.
    pub issued_ns: u64,
}

/// A reserved entry number. The operation must then be recorded under this number: until then the
/// ring still has an earlier operation in that place.
#[derive(Clone, Copy, Debug)]
pub struct RecorderSlot(u64);

impl RecorderSlot {
    /// Reserves the next number. The atomic addition waits until all earlier stores of this core
    /// have completed. Therefore callers reserve the number before a store that takes long, not
    /// after it.
    #[inline]
    pub fn reserve() -> Self {
        Self(RECORDER.next_number.fetch_add(1, Ordering::Relaxed))
    }
}

/// Records the issue of a collective. `is_running` is true if the collective runs immediately, and
/// false if it waits for its turn.
pub fn begin_collective(
    slot: RecorderSlot,
    origin: OperationOrigin,
    descriptor: &Descriptor,
    is_running: bool,
) -> OperationRecord {
    begin_logged(slot, origin, &descriptor.encode(), &descriptor.label, is_running)
}

/// Records that a message is posted.
pub fn begin_message(
    origin: OperationOrigin,
    message: &MessageDescriptor,
    sequence: u64,
) -> OperationRecord {
    let words = encode_message(message, sequence);
    begin_logged(RecorderSlot::reserve(), origin, &words, &message.label, true)
}

/// Records that a monitored barrier begins.
pub(in crate::api) fn begin_monitored_barrier(
    origin: OperationOrigin,
    number: u64,
    timeout_ms: u64,
) -> OperationRecord {
    let words = [MONITORED_BARRIER_KIND, timeout_ms, number, 0];
    begin_logged(RecorderSlot::reserve(), origin, &words, &Label::NONE, true)
}

/// Records the issue of an operation like [`begin_encoded`]. If the level is DEBUG or TRACE, the
/// log gets the operation, too.
#[inline]
fn begin_logged<const N: usize>(
    slot: RecorderSlot,
    origin: OperationOrigin,
    words: &[u64; N],
    label: &Label,
    is_running: bool,
) -> OperationRecord {
    let record = begin_encoded(slot, origin, words, label, is_running);
    let is_logged = log::enabled(LogLevel::Debug);
    if is_logged {
        log_issue(record.number, record.is_waiting);
    }
    OperationRecord { is_logged, ..record }
}

/// Records the issue of an operation that is already encoded as words, and its label. The log does
/// not get this operation.
#[inline]
pub(in crate::api) fn begin_encoded<const N: usize>(
    RecorderSlot(number): RecorderSlot,
    origin: OperationOrigin,
    words: &[u64; N],
    label: &Label,
    is_running: bool,
) -> OperationRecord {
    let OperationOrigin { group, rank, issued_ns } = origin;
    let entry = entry(number);
    entry.stamp.store(0, Ordering::Relaxed);
    fence(Ordering::Release);
    entry.group.store(short_group_id(group), Ordering::Relaxed);
    entry.rank.store(rank as u64, Ordering::Relaxed);
    for (cell, word) in entry.words.iter().zip(words) {
        cell.store(*word, Ordering::Relaxed);
    }
    if !label.is_none() {
        for (cell, word) in entry.label.iter().zip(label.words()) {
            cell.store(*word, Ordering::Relaxed);
        }
    }
    let state = if is_running { RUNNING } else { WAITING };
    entry.issued_ns.store(issued_ns, Ordering::Relaxed);
    entry.started_ns.store(if is_running { issued_ns } else { 0 }, Ordering::Relaxed);
    entry.ended_ns.store(0, Ordering::Relaxed);
    entry.state.store(state, Ordering::Relaxed);
    entry.stamp.store(number + 1, Ordering::Release);
    OperationRecord { number, entry, is_waiting: !is_running, is_logged: false, span: None }
}

impl OperationRecord {
    /// Adds the operation's span in the trace to the record.
    #[must_use]
    pub(in crate::api) fn with_span(self, span: OperationSpan) -> Self {
        Self { span: Some(Box::new(span)), ..self }
    }

    /// Records the total size of the byte strings of the call, when this rank knows it.
    pub(in crate::api) fn set_total_bytes(&self, total_bytes: u64) {
        self.update_details(|details| details.total_bytes = Some(total_bytes));
    }

    /// Records the sizes of the call's buffers, as far as they are known.
    pub(in crate::api) fn add_sizes(&self, sizes: &CallSizes) {
        if *sizes != CallSizes::default() {
            self.update_details(|details| details.add_sizes(sizes));
        }
    }

    /// Records the ranks that are missing in a monitored barrier.
    pub(in crate::api) fn set_missing(&self, missing: &[Rank]) {
        self.update_details(|details| details.set_missing(missing));
    }

    /// Returns the number of the operation in the recorder.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Returns the operation for the trace of its device time, if a trace is written.
    pub(super) fn device_span(&self) -> Option<DeviceSpan> {
        self.span.as_ref().map(|span| span.device_span())
    }

    fn update_details(&self, change: impl Fn(&mut OperationDetails)) {
        update_details(self.number, &change);
        if let Some(span) = &self.span {
            span.update_details(&change);
        }
    }

    /// Returns the entry, unless a later operation has overwritten it.
    fn entry(&self) -> Option<&'static RecorderEntry> {
        (self.entry.stamp.load(Ordering::Relaxed) == self.number + 1).then_some(self.entry)
    }

    /// Records the start of the operation's turn. The entry does not change if the operation was
    /// recorded as running at its issue.
    #[inline]
    pub fn mark_running(&self) {
        if self.is_waiting || self.span.is_some() {
            self.store_turn();
        }
    }

    fn store_turn(&self) {
        if let Some(span) = &self.span {
            span.take_turn();
        }
        let is_waiting = |entry: &&RecorderEntry| entry.state.load(Ordering::Relaxed) == WAITING;
        if let Some(entry) = self.entry().filter(is_waiting) {
            entry.started_ns.store(recorder_now_ns(), Ordering::Relaxed);
            entry.state.store(RUNNING, Ordering::Release);
            if self.is_logged {
                log_step(self.number, LogLevel::Trace, format_args!("starts"));
            }
        }
    }

    /// Records the outcome of the operation.
    pub fn end(self, outcome: &Result<()>) {
        self.end_at(outcome, |_| recorder_now_ns());
    }

    /// Records the end of a small operation that ran immediately and took at most about 10 µs. The
    /// clocks of different ranks differ by more than 10 µs, so the recorder uses the start as the
    /// end.
    pub fn end_without_clock(self, outcome: &Result<()>) {
        self.end_at(outcome, |entry| entry.started_ns.load(Ordering::Relaxed));
    }

    #[inline]
    fn end_at(mut self, outcome: &Result<()>, end_ns: impl FnOnce(&RecorderEntry) -> u64) {
        if let Some(span) = self.span.take() {
            span.end(outcome);
        }
        let Some(entry) = self.entry() else { return };
        let state = match outcome {
            Ok(()) => DONE,
            Err(error) => {
                let culprit = error.culprit().map_or(0, |rank| rank as u64 + 1);
                u64::from(error.kind().code()) | culprit << 8
            }
        };
        entry.ended_ns.store(end_ns(entry), Ordering::Relaxed);
        entry.state.store(state, Ordering::Release);
        if self.is_logged {
            log_end(self.number, entry, outcome);
        }
        // The next entry is probably not in the L1 cache, because the ring is larger than this
        // cache.
        ring::entry(self.number + 1).prefetch();
    }
}

/// Logs the issue of an operation at level TRACE.
#[cold]
fn log_issue(number: u64, is_waiting: bool) {
    let state = if is_waiting { "waits for earlier operations" } else { "starts" };
    log_step(number, LogLevel::Trace, format_args!("{state}"));
}

#[cold]
fn log_end(number: u64, entry: &RecorderEntry, outcome: &Result<()>) {
    let times = [&entry.issued_ns, &entry.ended_ns].map(|time| time.load(Ordering::Relaxed));
    let us = times[1].saturating_sub(times[0]) / 1000;
    match outcome {
        Ok(()) => log_step(number, LogLevel::Debug, format_args!("ended after {us} us")),
        Err(error) => {
            log_step(number, LogLevel::Debug, format_args!("failed after {us} us: {error}"));
        }
    }
}

/// Logs a line about an operation, unless a later operation has overwritten its entry.
#[cold]
fn log_step(number: u64, level: LogLevel, step: std::fmt::Arguments<'_>) {
    let Some(entry) = EntrySnapshot::read(number).filter(|_| log::enabled(level)) else {
        return;
    };
    let group = group_name(entry.group).unwrap_or_else(|| format!("{:016x}", entry.group));
    let operation = entry.describe_operation();
    crate::log!(level, "group {group}, rank {}: {operation} {step}", entry.rank);
}
