//! The flight recorder: the last 2000 operations of the process, always on.
//!
//! Recording is a handful of relaxed stores to one entry that nobody else writes. Looks at the
//! clock cost more than that: an operation is issued when its deadline began; one that has its turn
//! at once begins when it is issued; and one that was over at once ends when it began (see
//! [`OperationRecord::end_without_clock`]). Each entry carries the number it was written under,
//! before and after, so that a reader can tell an entry that was overwritten while it was being
//! read; such a one is left out.
//!
//! | file | what it is |
//! |---|---|
//! | this | the entries, and what is noted in them |
//! | `entries` | an entry, as JSON |
//! | `snapshot` | an entry as it was when somebody looked |
//! | `groups` | the groups that entries belong to, by the part of their id that an entry has |
//! | `dump` | everything, as JSON |
//! | `dump_files` | which files dumps go to, and when: at a failure, and when a file appears |

mod dump;
mod dump_files;
mod entries;
mod groups;
mod snapshot;

pub use dump::{DumpReason, dump};
pub(super) use dump_files::{dump_failures_and_wait, read_dump_environment, request_failure_dump};
pub(super) use groups::{NewGroup, RecorderMembership, group_name};
pub(super) use snapshot::{EntrySnapshot, newest_entries};

use super::point_to_point::MessageDescriptor;
use super::trace::OperationSpan;
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

/// How many operations are kept.
pub const MAX_ENTRIES: usize = 2000;

const WAITING: u64 = u64::MAX;
const RUNNING: u64 = u64::MAX - 1;
const DONE: u64 = u64::MAX - 2;

/// One operation. `stamp` is its number plus one, 0 while it is written or never was.
///
/// It has two cache lines, in this order of fields: a call without a label writes all but the last.
#[derive(Debug, Default)]
#[repr(C, align(64))]
struct RecorderEntry {
    stamp: AtomicU64,
    group: AtomicU64,
    rank: AtomicU64,
    /// A descriptor's, or a message's.
    words: [AtomicU64; 4],
    issued_ns: AtomicU64,
    /// 0 until its turn has come.
    started_ns: AtomicU64,
    ended_ns: AtomicU64,
    /// `WAITING`, `RUNNING`, `DONE`, or an error: the code of its kind, and above that the culprit
    /// plus one.
    state: AtomicU64,
    /// The label, if the words say that there is one.
    label: [AtomicU64; LABEL_WORDS],
}

const _: () = {
    let lines = [offset_of!(RecorderEntry, stamp) / 64, offset_of!(RecorderEntry, state) / 64];
    assert!(
        lines[0] == 0 && lines[1] == 1 && size_of::<RecorderEntry>() == 128,
        "prefetch asks for both lines"
    );
};

impl RecorderEntry {
    /// Asks for its memory, which is soon written.
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
    /// The same on the kernel's clock, of which a number costs less than an `Instant`.
    origin_monotonic_ns: u64,
    /// What the clock on the wall said then, in nanoseconds since 1970.
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

/// An operation that is under way.
#[derive(Debug)]
pub struct OperationRecord {
    number: u64,
    entry: &'static RecorderEntry,
    /// Its turn had not come when it was noted.
    is_waiting: bool,
    /// The same operation in the trace, where one is written.
    span: Option<Box<OperationSpan>>,
}

fn duration_ns(time: Duration) -> u64 {
    time.as_secs().saturating_mul(1_000_000_000).saturating_add(u64::from(time.subsec_nanos()))
}

/// From 1, so that 0 means never.
pub(super) fn recorder_ns(at: Instant) -> u64 {
    duration_ns(at.saturating_duration_since(RECORDER.origin)).max(1)
}

/// The same on the wall clock as it was when the recorder began, in nanoseconds since 1970.
pub(super) fn recorder_unix_ns(at: Instant) -> u64 {
    RECORDER.origin_unix_ns.saturating_add(recorder_ns(at))
}

pub(super) fn recorder_now_ns() -> u64 {
    this_process::monotonic_ns().saturating_sub(RECORDER.origin_monotonic_ns).max(1)
}

fn entry(number: u64) -> &'static RecorderEntry {
    let index = usize::try_from(number % (MAX_ENTRIES as u64)).unwrap_or(0);
    &RECORDER.entries[index]
}

/// The part of a group's id that the recorder keeps.
pub(super) fn short_group_id(group: GroupId) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = group.0;
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// Whose operation it is, and when it was issued.
#[derive(Clone, Copy, Debug)]
pub struct OperationOrigin {
    /// The group.
    pub group: GroupId,
    /// This process's rank in it.
    pub rank: Rank,
    /// When, in nanoseconds since the recorder began.
    pub issued_ns: u64,
}

/// The place of an operation among all. It must be noted: until then whatever had the place before
/// is in it.
#[derive(Clone, Copy, Debug)]
pub struct RecorderSlot(u64);

impl RecorderSlot {
    /// The next one. No core goes on from this before its stores are through, so that it comes
    /// before a store that takes long.
    #[inline]
    pub fn reserve() -> Self {
        Self(RECORDER.next_number.fetch_add(1, Ordering::Relaxed))
    }
}

/// Notes that a collective is issued. It runs from then on, or it waits for its turn.
pub fn begin_collective(
    slot: RecorderSlot,
    origin: OperationOrigin,
    descriptor: &Descriptor,
    is_running: bool,
) -> OperationRecord {
    begin_encoded(slot, origin, (&descriptor.encode(), &descriptor.label), is_running)
}

/// Notes that a collective with these words of a descriptor and this label is issued, and runs.
#[inline]
pub fn begin_running_collective(
    slot: RecorderSlot,
    origin: OperationOrigin,
    words_and_label: (&[u64; 3], &Label),
) -> OperationRecord {
    begin_encoded(slot, origin, words_and_label, true)
}

/// Notes that a message is posted.
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
    let OperationOrigin { group, rank, issued_ns: at_ns } = origin;
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
    entry.issued_ns.store(at_ns, Ordering::Relaxed);
    entry.started_ns.store(if is_running { at_ns } else { 0 }, Ordering::Relaxed);
    entry.ended_ns.store(0, Ordering::Relaxed);
    entry.state.store(state, Ordering::Relaxed);
    entry.stamp.store(number + 1, Ordering::Release);
    OperationRecord { number, entry, is_waiting: !is_running, span: None }
}

impl OperationRecord {
    /// The operation will be in the trace, too.
    #[must_use]
    pub(super) fn with_span(self, span: OperationSpan) -> Self {
        Self { span: Some(Box::new(span)), ..self }
    }

    /// Its entry, unless that has become another's: a later operation's, while this one took its
    /// time.
    fn entry(&self) -> Option<&'static RecorderEntry> {
        (self.entry.stamp.load(Ordering::Relaxed) == self.number + 1).then_some(self.entry)
    }

    /// Notes that its turn has come, unless it has run since it was issued.
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

    /// Notes how the operation ended.
    pub fn end(self, outcome: &Result<()>) {
        self.end_at(outcome, |_| recorder_now_ns());
    }

    /// Notes the end of a small operation that has run since it was issued and has waited for some
    /// ten microseconds at most: less than the clocks of several ranks can be compared to, so that
    /// it may as well have ended when it began.
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
        // There are more entries than the nearest cache holds.
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
        // Also entries that had a label before.
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
