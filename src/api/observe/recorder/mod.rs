//! The flight recorder: the last 2000 operations of the process. It is always on.
//!
//! Recording takes about ten relaxed stores to one entry that no other thread writes. Reading the
//! clock costs more, so the recorder reuses times:
//! * An operation is issued when its deadline starts.
//! * An operation that gets its turn immediately starts at the time of its issue.
//! * An operation that ends immediately ends at the time of its start (see
//!   [`OperationRecord::end_without_clock`]).
//!
//! Each entry has a stamp with its number, written before and after the entry. A reader compares
//! the stamps and drops an entry that was overwritten during the read.
//!
//! | file | content |
//! |---|---|
//! | this file | the entries and the functions that record them |
//! | `entries` | the encoding of messages; an entry as JSON |
//! | `snapshot` | a consistent copy of an entry |
//! | `groups` | the groups of the entries, by their short ids |
//! | `dump` | the whole dump as JSON |
//! | `dump_files` | the files of dumps, written at failures and on a trigger |

mod dump;
mod dump_files;
mod entries;
mod groups;
mod snapshot;

pub use dump::{DumpReason, dump};
pub(in crate::api) use dump_files::{
    dump_failures_and_wait, read_dump_environment, request_failure_dump,
};
pub(in crate::api) use groups::{NewGroup, RecorderMembership, group_name};
pub(in crate::api) use snapshot::{EntrySnapshot, newest_entries};

use crate::api::observe::trace::OperationSpan;
use crate::api::p2p::point_to_point::MessageDescriptor;
use crate::base::error::Result;
use crate::base::ids::{GroupId, Rank};
use crate::base::label::{LABEL_WORDS, Label};
use crate::base::processor;
use crate::process::this_process;
use crate::transport::Descriptor;
use std::mem::offset_of;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

/// The number of operations in the ring.
pub const MAX_ENTRIES: usize = 2000;

const WAITING: u64 = u64::MAX;
const RUNNING: u64 = u64::MAX - 1;
const DONE: u64 = u64::MAX - 2;

/// One operation. `stamp` is its number plus one, or 0 while the entry is written or if it never
/// was.
///
/// An entry has two cache lines with the fields in this order. A call without a label writes all
/// fields but the last.
#[derive(Debug, Default)]
#[repr(C, align(64))]
struct RecorderEntry {
    stamp: AtomicU64,
    group: AtomicU64,
    rank: AtomicU64,
    /// The words of a descriptor or of a message.
    words: [AtomicU64; 4],
    issued_ns: AtomicU64,
    /// 0 until the operation's turn begins.
    started_ns: AtomicU64,
    ended_ns: AtomicU64,
    /// `WAITING`, `RUNNING`, `DONE`, or an error. An error has the code of its kind in the lowest
    /// byte, and the culprit plus one above.
    state: AtomicU64,
    /// The label, if the words indicate one.
    label: [AtomicU64; LABEL_WORDS],
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
    fn prefetch(&self) {
        let first: *const AtomicU64 = &raw const self.stamp;
        processor::prefetch_to_write(first.cast());
        let last: *const AtomicU64 = &raw const self.state;
        processor::prefetch_to_write(last.cast());
    }
}

struct FlightRecorder {
    origin: Instant,
    /// The origin on the kernel's monotonic clock. Reading this clock as a number costs less than
    /// an `Instant`.
    origin_monotonic_ns: u64,
    /// The wall clock at the origin, in nanoseconds since 1970.
    origin_unix_ns: u64,
    next_number: AtomicU64,
    entries: Vec<RecorderEntry>,
}

static RECORDER: LazyLock<FlightRecorder> = LazyLock::new(|| {
    let now = this_process::clock_snapshot();
    FlightRecorder {
        origin: now.instant,
        origin_monotonic_ns: now.monotonic_ns,
        origin_unix_ns: now.wall_ns,
        next_number: AtomicU64::new(0),
        entries: (0..MAX_ENTRIES).map(|_| RecorderEntry::default()).collect(),
    }
});

/// The record of a running operation.
#[derive(Debug)]
pub struct OperationRecord {
    number: u64,
    entry: &'static RecorderEntry,
    /// True if the operation was recorded before its turn.
    is_waiting: bool,
    /// The span of the operation in the trace, if a trace is written.
    span: Option<Box<OperationSpan>>,
}

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

fn entry(number: u64) -> &'static RecorderEntry {
    let index = usize::try_from(number % (MAX_ENTRIES as u64)).unwrap_or(0);
    &RECORDER.entries[index]
}

/// Returns the short id of a group: the part of its id that the recorder keeps.
pub(in crate::api) fn short_group_id(group: GroupId) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = group.0;
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
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

/// The reserved slot of an operation. The operation must be recorded: until then the slot has the
/// entry of an earlier operation.
#[derive(Clone, Copy, Debug)]
pub struct RecorderSlot(u64);

impl RecorderSlot {
    /// Reserves the next slot. The atomic addition waits for all earlier stores of this core. It is
    /// therefore placed before a store that takes long.
    #[inline]
    pub fn reserve() -> Self {
        Self(RECORDER.next_number.fetch_add(1, Ordering::Relaxed))
    }
}

/// Records the issue of a collective. It runs from now on, or it waits for its turn.
pub fn begin_collective(
    slot: RecorderSlot,
    origin: OperationOrigin,
    descriptor: &Descriptor,
    is_running: bool,
) -> OperationRecord {
    begin_encoded(slot, origin, (&descriptor.encode(), &descriptor.label), is_running)
}

/// Records the issue of a running collective from the encoded words of its descriptor and its
/// label.
#[inline]
pub fn begin_running_collective(
    slot: RecorderSlot,
    origin: OperationOrigin,
    words_and_label: (&[u64; 3], &Label),
) -> OperationRecord {
    begin_encoded(slot, origin, words_and_label, true)
}

/// Records that a message is posted.
pub fn begin_message(
    origin: OperationOrigin,
    message: &MessageDescriptor,
    sequence: u64,
) -> OperationRecord {
    let words = entries::encode_message(message, sequence);
    begin_encoded(RecorderSlot::reserve(), origin, (&words, &message.label), true)
}

#[inline]
fn begin_encoded<const N: usize>(
    RecorderSlot(number): RecorderSlot,
    origin: OperationOrigin,
    (words, label): (&[u64; N], &Label),
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
    OperationRecord { number, entry, is_waiting: !is_running, span: None }
}

impl OperationRecord {
    /// Adds the operation's span in the trace.
    #[must_use]
    pub(in crate::api) fn with_span(self, span: OperationSpan) -> Self {
        Self { span: Some(Box::new(span)), ..self }
    }

    /// Returns the entry, unless a later operation has overwritten it.
    fn entry(&self) -> Option<&'static RecorderEntry> {
        (self.entry.stamp.load(Ordering::Relaxed) == self.number + 1).then_some(self.entry)
    }

    /// Records the start of the operation's turn, unless it has run since its issue.
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
        }
    }

    /// Records the outcome of the operation.
    pub fn end(self, outcome: &Result<()>) {
        self.end_at(outcome, |_| recorder_now_ns());
    }

    /// Records the end of a small operation that has run since its issue and took at most about 10
    /// µs. Clocks of different ranks differ by more than that, so the recorder uses the start as
    /// the end.
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
        // The next entry is probably not in the L1 cache: the ring is larger than that cache.
        self::entry(self.number + 1).prefetch();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::error::{Error, ErrorKind};
    use crate::base::ids::Nonce;
    use crate::transport::{CountSpec, OpKind};

    fn barrier(sequence: u64) -> Descriptor {
        Descriptor {
            kind: OpKind::Barrier,
            dtype: None,
            op: None,
            root: None,
            count_spec: CountSpec::Count(0),
            sequence,
            algorithm: 0,
            part: 0,
            label: Label::NONE,
        }
    }

    #[test]
    fn entry_has_only_the_label_of_its_own_call() {
        let group = Nonce(*b"recorder-label-i");
        let label = Label::new("layer3.weight").unwrap();
        // Entries that had a label before are reused, too.
        for sequence in 1..=u64::try_from(MAX_ENTRIES).unwrap() * 2 + 2 {
            let origin = OperationOrigin { group, rank: 1, issued_ns: recorder_now_ns() };
            let label = if sequence % 3 == 0 { label } else { Label::NONE };
            let descriptor = Descriptor { label, ..barrier(sequence) };
            begin_collective(RecorderSlot::reserve(), origin, &descriptor, true).end(&Ok(()));
        }
        let dump = dump(Some(group), DumpReason::Request);
        let entries = dump["entries"].as_array().unwrap();
        assert!(entries.len() > 100);
        for entry in entries {
            let sequence = entry["sequence"].as_u64().unwrap();
            let (description, key) = (&entry["description"], entry.get("label"));
            if sequence % 3 == 0 {
                assert_eq!(key.unwrap(), "layer3.weight");
                assert_eq!(*description, format!("barrier #{sequence} \"layer3.weight\""));
            } else {
                assert_eq!((key, description), (None, &format!("barrier #{sequence}").into()));
            }
        }
    }

    #[test]
    fn the_last_entries_are_kept_with_their_outcome() {
        let group = Nonce(*b"recorder-test-id");
        for sequence in 1..=5 {
            let origin = OperationOrigin { group, rank: 1, issued_ns: recorder_now_ns() };
            let record = begin_collective(
                RecorderSlot::reserve(),
                origin,
                &barrier(sequence),
                sequence != 3,
            );
            match sequence {
                1 => record.end(&Ok(())),
                2 => record.end(&Err(Error::new(ErrorKind::Timeout, "late").with_culprit(7))),
                3 => record.mark_running(),
                _ => {}
            }
        }
        let origin = OperationOrigin { group, rank: 1, issued_ns: recorder_now_ns() };
        let _waiting = begin_collective(RecorderSlot::reserve(), origin, &barrier(6), false);
        let dump = dump(Some(group), DumpReason::Request);
        let entries = dump["entries"].as_array().unwrap();
        let states: Vec<_> = entries.iter().map(|e| e["state"].as_str().unwrap()).collect();
        assert_eq!(states, ["done", "failed", "running", "running", "running", "waiting"]);
        assert_eq!(entries[0]["operation"], "barrier");
        assert_eq!(entries[0]["description"], "barrier #1");
        assert_eq!((&entries[1]["error"], &entries[1]["culprit"]), (&"Timeout".into(), &7.into()));
        assert!(entries[2]["started_ns"].as_u64() > entries[2]["issued_ns"].as_u64());
        assert_eq!(entries[3]["started_ns"], entries[3]["issued_ns"]);
        assert!(entries[5]["started_ns"].is_null() && entries[5]["ended_ns"].is_null());
        assert!(dump["taken_ns"].as_u64() >= entries[5]["issued_ns"].as_u64());
    }
}
