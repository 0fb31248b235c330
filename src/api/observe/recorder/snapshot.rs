//! A consistent copy of one entry of the flight recorder, and a description of the entry's
//! operation.

use super::details::read_details;
use super::message_words::{MESSAGE_KIND, MONITORED_BARRIER_KIND, decode_message, is_labelled};
use super::ring::{DONE, MAX_ENTRIES, RECORDER, RUNNING, WAITING, entry, recorder_now_ns};
use crate::api::observe::call_history::call_hash;
use crate::api::observe::operation_details::OperationDetails;
use crate::base::error::ErrorKind;
use crate::base::label::{Label, LabelSuffix};
use crate::transport::{CountSpec, Descriptor};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

/// The kinds of operations in the recorder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::api) enum EntryKind {
    Collective,
    Message,
    MonitoredBarrier,
}

/// A copy of one entry.
#[derive(Clone, Copy, Debug)]
pub(in crate::api) struct EntrySnapshot {
    pub(super) number: u64,
    pub(in crate::api) group: u64,
    pub(in crate::api) rank: u64,
    pub(super) words: [u64; 4],
    /// The label; `Label::NONE` if the operation has no label or the copied label is invalid.
    pub(super) label: Label,
    pub(in crate::api) issued_ns: u64,
    pub(super) started_ns: u64,
    pub(in crate::api) ended_ns: u64,
    pub(super) state: u64,
}

impl EntrySnapshot {
    /// Reads the entry with this number. Returns `None` if a later operation has overwritten it.
    pub(super) fn read(number: u64) -> Option<Self> {
        let entry = entry(number);
        let load = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        if entry.stamp.load(Ordering::Acquire) != number + 1 {
            return None;
        }
        // The state is read before the times. The writer stores the time of a change and then the
        // state (with release). So a reader that sees the new state also sees the time of the
        // change.
        let state = entry.state.load(Ordering::Acquire);
        let words = std::array::from_fn(|i| load(&entry.words[i]));
        let label = match is_labelled(&words) {
            true => Label::from_words(std::array::from_fn(|i| load(&entry.label[i]))),
            false => None,
        };
        let snapshot = Self {
            number,
            group: load(&entry.group),
            rank: load(&entry.rank),
            words,
            label: label.unwrap_or(Label::NONE),
            issued_ns: load(&entry.issued_ns),
            started_ns: load(&entry.started_ns),
            ended_ns: load(&entry.ended_ns),
            state,
        };
        fence(Ordering::Acquire);
        (load(&entry.stamp) == number + 1).then_some(snapshot)
    }

    /// Returns the kind of the operation.
    pub(in crate::api) fn kind(&self) -> EntryKind {
        match self.words[0] & 0xff {
            MESSAGE_KIND => EntryKind::Message,
            MONITORED_BARRIER_KIND => EntryKind::MonitoredBarrier,
            _ => EntryKind::Collective,
        }
    }

    /// Returns whether the operation is a collective of the group's queue.
    pub(in crate::api) fn is_collective(&self) -> bool {
        self.kind() == EntryKind::Collective
    }

    /// Returns the timeout of a monitored barrier in milliseconds.
    pub(super) fn barrier_timeout_ms(&self) -> u64 {
        self.words[1]
    }

    /// Returns the hash of a collective in the group's call history; 0 for invalid words.
    pub(super) fn call_hash(&self) -> u64 {
        self.descriptor().map_or(0, |descriptor| call_hash(&descriptor))
    }

    /// Returns the details of the operation.
    pub(in crate::api) fn details(&self) -> OperationDetails {
        read_details(self.number)
    }

    /// Returns the descriptor of a collective; `None` for invalid words.
    pub(in crate::api) fn descriptor(&self) -> Option<Descriptor> {
        let [first, second, third, _] = self.words;
        let known = Descriptor::decode([first, second, third])?;
        Some(known.with_label_text(Some(self.label)))
    }

    /// Returns the time since the issue of the operation.
    pub(in crate::api) fn issued_ago(&self) -> Duration {
        Duration::from_nanos(recorder_now_ns().saturating_sub(self.issued_ns))
    }

    /// Returns whether the operation is waiting or running.
    pub(in crate::api) fn is_under_way(&self) -> bool {
        matches!(self.state, WAITING | RUNNING)
    }

    /// Returns the key of the operation's queue: its group, this process's rank in the group, and
    /// its kind.
    pub(in crate::api) fn queue_key(&self) -> (u64, u64, EntryKind) {
        (self.group, self.rank, self.kind())
    }

    /// Returns the sequence number in the group.
    pub(in crate::api) fn sequence(&self) -> u64 {
        self.words[2]
    }

    /// Returns the time since the operation ended.
    pub(in crate::api) fn ended_ago(&self) -> Duration {
        Duration::from_nanos(recorder_now_ns().saturating_sub(self.ended_ns))
    }

    /// Returns the kind of failure, if the operation failed.
    pub(in crate::api) fn failure(&self) -> Option<ErrorKind> {
        let has_failed = !self.is_under_way() && self.state != DONE;
        let code = u8::try_from(self.state & 0xff).unwrap_or(u8::MAX);
        has_failed.then(|| ErrorKind::from_code(code))
    }

    /// Returns the culprit of the failure.
    pub(super) fn culprit(&self) -> Option<u64> {
        self.failure().and_then(|_| (self.state >> 8).checked_sub(1))
    }

    /// Returns a description of the operation for log and error texts.
    pub(in crate::api) fn describe_operation(&self) -> String {
        let sequence = self.sequence();
        match self.kind() {
            EntryKind::Collective => {
                let descriptor = self.descriptor();
                return descriptor.map_or("something".to_owned(), |it| self.describe_call(&it));
            }
            EntryKind::MonitoredBarrier => return format!("monitored_barrier #{sequence}"),
            EntryKind::Message => {}
        }
        let Some(message) = decode_message(self.words) else { return "a message".to_owned() };
        let (verb, towards) = if message.is_outgoing { ("send", "to") } else { ("recv", "from") };
        let label = LabelSuffix(self.label);
        match message.peer {
            Some(peer) => format!("{verb} #{sequence}{label} {towards} rank {peer}"),
            None => format!("{verb} #{sequence}{label} from any rank"),
        }
    }
}

impl EntrySnapshot {
    /// Returns a description of a collective. A call on byte strings has the name and the size of
    /// the call, and not those of its first operation.
    pub(super) fn describe_call(&self, descriptor: &Descriptor) -> String {
        if descriptor.count_spec != CountSpec::Lengths {
            return descriptor.to_string();
        }
        let Descriptor { sequence, root, label, .. } = *descriptor;
        let root = root.map(|root| format!("root {root}"));
        let bytes = self.details().total_bytes.map(|bytes| format!("{bytes} bytes"));
        let parts: Vec<String> = root.into_iter().chain(bytes).collect();
        let name = format!("{} #{sequence}{}", descriptor.call_name(), LabelSuffix(label));
        if parts.is_empty() { name } else { format!("{name} ({})", parts.join(", ")) }
    }
}

/// Returns up to `count` of the last entries, newest first.
pub(in crate::api) fn newest_entries(count: usize) -> impl Iterator<Item = EntrySnapshot> {
    let next = RECORDER.next_number.load(Ordering::Acquire);
    let first = next.saturating_sub(count.min(MAX_ENTRIES) as u64);
    (first..next).rev().filter_map(EntrySnapshot::read)
}
