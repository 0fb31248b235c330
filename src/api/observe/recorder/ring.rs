//! The ring of the flight recorder: its entries, its clock and the short ids of groups.
//!
//! The entries are static. One thread at a time writes an entry (`record`), and `snapshot` reads
//! it.

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

pub(super) const WAITING: u64 = u64::MAX;
pub(super) const RUNNING: u64 = u64::MAX - 1;
pub(super) const DONE: u64 = u64::MAX - 2;

/// One operation. `stamp` is its number plus one, or 0 while the entry is written or if it never
/// was.
///
/// An entry has two cache lines with the fields in this order. A call without a label writes all
/// fields but the last.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(super) struct RecorderEntry {
    pub(super) stamp: AtomicU64,
    pub(super) group: AtomicU64,
    pub(super) rank: AtomicU64,
    /// The words of a descriptor or of a message.
    pub(super) words: [AtomicU64; 4],
    pub(super) issued_ns: AtomicU64,
    /// 0 until the operation's turn begins.
    pub(super) started_ns: AtomicU64,
    pub(super) ended_ns: AtomicU64,
    /// `WAITING`, `RUNNING`, `DONE`, or an error. An error has the code of its kind in the lowest
    /// byte, and the culprit plus one above.
    pub(super) state: AtomicU64,
    /// The label, if the words indicate one.
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
    /// Prefetches the entry for the writes that follow.
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
    /// The origin on the kernel's monotonic clock. Reading this clock as a number costs less than
    /// an `Instant`.
    origin_monotonic_ns: u64,
    /// The wall clock at the origin, in nanoseconds since 1970.
    pub(super) origin_unix_ns: u64,
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

/// Returns a time in nanoseconds since the recorder started, at least 1, because 0 means never.
pub(in crate::api) fn recorder_ns(at: Instant) -> u64 {
    duration_ns(at.saturating_duration_since(RECORDER.origin)).max(1)
}

/// Returns a time in nanoseconds since 1970, on the wall clock of the recorder's start.
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

/// Returns the short id of a group: the part of its id that the recorder keeps.
pub(in crate::api) fn short_group_id(group: GroupId) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = group.0;
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}
