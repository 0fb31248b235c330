//! The ring of the flight recorder: its entries, its clock and the short ids of groups.
//!
//! The entries live as long as the process. Only one thread at a time writes an entry (`record`).
//! Any thread may read an entry at any time (`snapshot`).

use crate::base::ids::GroupId;
use crate::base::label::LABEL_WORDS;
use crate::base::processor;
use crate::process::this_process;
use std::mem::offset_of;
use std::sync::LazyLock;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

/// The number of operations in the ring.
pub const MAX_ENTRIES: usize = 2000;

/// The state of an operation that waits for its turn.
pub(super) const WAITING: u64 = u64::MAX;
/// The state of an operation that runs.
pub(super) const RUNNING: u64 = u64::MAX - 1;
/// The state of an operation that has succeeded.
pub(super) const DONE: u64 = u64::MAX - 2;

/// The entry of one operation.
///
/// An entry has two cache lines with the fields in this order. For a call without a label, all
/// fields but the last are written.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(super) struct RecorderEntry {
    /// The operation's number plus one. 0 while the entry is written, and before its first use.
    pub(super) stamp: AtomicU64,
    /// The short id of the group (see [`short_group_id`]).
    pub(super) group: AtomicU64,
    pub(super) rank: AtomicU64,
    /// The operation: an encoded descriptor of a collective, or an encoded message.
    pub(super) words: [AtomicU64; 4],
    pub(super) issued_ns: AtomicU64,
    /// 0 until the operation's turn begins.
    pub(super) started_ns: AtomicU64,
    pub(super) ended_ns: AtomicU64,
    /// `WAITING`, `RUNNING`, `DONE`, or an error. An error has the code of its kind in the lowest
    /// byte, and the culprit's rank plus one in the higher bytes.
    pub(super) state: AtomicU64,
    /// The label, if `words` says that the operation has a label.
    pub(super) label: [AtomicU64; LABEL_WORDS],
}

const _: () = {
    let lines = [offset_of!(RecorderEntry, stamp) / 64, offset_of!(RecorderEntry, state) / 64];
    assert!(
        lines[0] == 0 && lines[1] == 1 && size_of::<RecorderEntry>() == 128,
        "prefetch requests the two cache lines of an entry"
    );
};

impl RecorderEntry {
    /// Prefetches the entry, because a thread is about to write it.
    #[inline]
    pub(super) fn prefetch(&self) {
        let first: *const AtomicU64 = &raw const self.stamp;
        processor::prefetch_to_write(first.cast());
        let last: *const AtomicU64 = &raw const self.state;
        processor::prefetch_to_write(last.cast());
    }
}

pub(super) struct FlightRecorder {
    origin: Instant,
    /// The same time as `origin`, as a number of the kernel's monotonic clock. Reading this clock
    /// as a number costs less than creating an `Instant`.
    origin_monotonic_ns: u64,
    /// The same time as `origin` on the wall clock, in nanoseconds since 1970.
    pub(super) origin_unix_ns: u64,
    /// The number of the next operation.
    pub(super) next_number: AtomicU64,
    entries: Vec<RecorderEntry>,
}

pub(super) static RECORDER: LazyLock<FlightRecorder> = LazyLock::new(|| {
    let now = this_process::clock_snapshot();
    FlightRecorder {
        origin: now.instant,
        origin_monotonic_ns: now.monotonic_ns,
        origin_unix_ns: now.wall_ns,
        next_number: AtomicU64::new(0),
        entries: (0..MAX_ENTRIES).map(|_| RecorderEntry::default()).collect(),
    }
});

fn duration_ns(time: Duration) -> u64 {
    time.as_secs().saturating_mul(1_000_000_000).saturating_add(u64::from(time.subsec_nanos()))
}

/// Converts a time to nanoseconds since the recorder started. The result is at least 1, because 0
/// means never.
pub(in crate::api) fn recorder_ns(at: Instant) -> u64 {
    duration_ns(at.saturating_duration_since(RECORDER.origin)).max(1)
}

/// Converts a time to nanoseconds since 1970. The result is relative to the wall clock at the
/// recorder's start, so later changes of the wall clock have no effect.
pub(in crate::api) fn recorder_unix_ns(at: Instant) -> u64 {
    RECORDER.origin_unix_ns.saturating_add(recorder_ns(at))
}

pub(in crate::api) fn recorder_now_ns() -> u64 {
    this_process::monotonic_ns().saturating_sub(RECORDER.origin_monotonic_ns).max(1)
}

pub(super) fn entry(number: u64) -> &'static RecorderEntry {
    let index = usize::try_from(number % (MAX_ENTRIES as u64)).unwrap_or(0);
    &RECORDER.entries[index]
}

/// Returns the short id of a group: the first eight bytes of its id, which the recorder keeps.
pub(in crate::api) fn short_group_id(group: GroupId) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = group.0;
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}
