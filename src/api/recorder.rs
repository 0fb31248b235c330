//! The flight recorder: the last 2000 operations of the process, always on.
//!
//! Recording is a handful of relaxed stores. Each entry carries the number it was written under, before
//! and after, so that a reader can tell an entry that was overwritten while it was being read; such a
//! one is left out.

use super::point_to_point::Message;
use crate::base::dtype::DataType;
use crate::base::error::{ErrorKind, Result};
use crate::base::ids::{GroupId, Rank};
use crate::transport::{Descriptor, Extent};
use serde_json::{Value, json};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

/// How many operations are kept.
pub const ENTRIES: usize = 2000;

const RUNNING: u64 = u64::MAX;
const DONE: u64 = u64::MAX - 1;

/// One operation. `stamp` is its number plus one, 0 while it is written or never was.
#[derive(Debug, Default)]
struct Entry {
    stamp: AtomicU64,
    group: AtomicU64,
    rank: AtomicU64,
    /// A descriptor's, or a message's.
    words: [AtomicU64; 4],
    started_ns: AtomicU64,
    ended_ns: AtomicU64,
    /// `RUNNING`, `DONE`, or the code of the error kind.
    state: AtomicU64,
}

struct Recorder {
    origin: Instant,
    next: AtomicU64,
    entries: Vec<Entry>,
}

static RECORDER: LazyLock<Recorder> = LazyLock::new(|| Recorder {
    origin: Instant::now(),
    next: AtomicU64::new(0),
    entries: (0..ENTRIES).map(|_| Entry::default()).collect(),
});

/// An operation that is under way.
#[derive(Debug)]
pub struct Record {
    number: u64,
}

fn now_ns() -> u64 {
    u64::try_from(RECORDER.origin.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

fn entry(number: u64) -> &'static Entry {
    let index = usize::try_from(number % (ENTRIES as u64)).unwrap_or(0);
    &RECORDER.entries[index]
}

/// The part of a group's id that the recorder keeps.
pub(super) fn short(group: GroupId) -> u64 {
    group.0[..8].iter().fold(0, |word, &byte| word << 8 | u64::from(byte))
}

/// Notes that a collective begins.
pub fn begin(group: GroupId, rank: Rank, descriptor: &Descriptor) -> Record {
    begin_words(group, rank, &descriptor.encode())
}

/// Notes that a message is posted.
pub fn begin_message(group: GroupId, rank: Rank, message: &Message, sequence: u64) -> Record {
    begin_words(group, rank, &encode_message(message, sequence))
}

#[inline]
fn begin_words<const N: usize>(group: GroupId, rank: Rank, words: &[u64; N]) -> Record {
    let number = RECORDER.next.fetch_add(1, Ordering::Relaxed);
    let entry = entry(number);
    entry.stamp.store(0, Ordering::Relaxed);
    fence(Ordering::Release);
    entry.group.store(short(group), Ordering::Relaxed);
    entry.rank.store(rank as u64, Ordering::Relaxed);
    for (cell, word) in entry.words.iter().zip(words) {
        cell.store(*word, Ordering::Relaxed);
    }
    entry.started_ns.store(now_ns(), Ordering::Relaxed);
    entry.ended_ns.store(0, Ordering::Relaxed);
    entry.state.store(RUNNING, Ordering::Relaxed);
    entry.stamp.store(number + 1, Ordering::Release);
    Record { number }
}

/// What the lowest byte of a message's first word is; a descriptor's is odd.
const MESSAGE: u64 = 2;

fn encode_message(message: &Message, sequence: u64) -> [u64; 4] {
    let direction = u64::from(message.is_outgoing);
    let peer = message.peer.map_or(0, |peer| peer as u64 + 1);
    let tag = message.tag.map_or(0, |tag| u64::from(tag) + 1);
    let first = MESSAGE | direction << 8 | (message.dtype as u64) << 16 | peer << 32;
    [first, message.count as u64, sequence, tag]
}

/// What the words say, as JSON; `None` for words that nothing has.
fn describe(words: [u64; 4]) -> Option<Value> {
    if words[0] & 0xff != MESSAGE {
        let descriptor = Descriptor::decode([words[0], words[1], words[2]])?;
        return Some(json!({
            "sequence": descriptor.sequence,
            "operation": descriptor.kind.name(),
            "dtype": descriptor.dtype.map(|dtype| dtype.name()),
            "op": descriptor.op.map(|op| op.name()),
            "root": descriptor.root,
            "count": match descriptor.extent {
                Extent::Count(count) => Some(count),
                Extent::Counts { total, .. } => Some(total),
                Extent::Lengths => Some(1),
                Extent::Pairwise => None,
            },
        }));
    }
    let dtype = usize::try_from((words[0] >> 16) & 0xff).ok()?;
    Some(json!({
        "sequence": words[2],
        "operation": if words[0] >> 8 & 1 == 1 { "send" } else { "recv" },
        "dtype": DataType::ALL.get(dtype)?.name(),
        "peer": (words[0] >> 32).checked_sub(1),
        "tag": words[3].checked_sub(1),
        "count": words[1],
    }))
}

impl Record {
    /// Notes how the operation ended.
    pub fn end(self, outcome: &Result<()>) {
        let entry = entry(self.number);
        if entry.stamp.load(Ordering::Relaxed) != self.number + 1 {
            return;
        }
        entry.ended_ns.store(now_ns(), Ordering::Relaxed);
        let state = outcome.as_ref().map_or_else(|error| u64::from(error.kind().code()), |()| DONE);
        entry.state.store(state, Ordering::Release);
    }
}

/// The entries of one group, or of all, oldest first.
pub fn dump(group: Option<GroupId>) -> Value {
    let next = RECORDER.next.load(Ordering::Acquire);
    let first = next.saturating_sub(ENTRIES as u64);
    let wanted = group.map(short);
    let entries: Vec<Value> = (first..next).filter_map(|number| read(number, wanted)).collect();
    json!({ "format": "libdist flight recorder", "version": 1, "entries": entries })
}

/// One entry, as it was when it was read.
#[derive(Debug)]
pub(super) struct Glance {
    pub(super) group: u64,
    pub(super) rank: u64,
    pub(super) started_ns: u64,
    pub(super) ended_ns: u64,
    words: [u64; 4],
    state: u64,
}

impl Glance {
    /// A collective, not a message.
    pub(super) fn is_collective(&self) -> bool {
        self.words[0] & 0xff != MESSAGE
    }

    /// It has not ended, and may not have begun to run.
    pub(super) fn is_running(&self) -> bool {
        self.state == RUNNING
    }

    /// Operations of which one waits for another have the same.
    pub(super) fn queue(&self) -> (u64, u64, bool) {
        (self.group, self.rank, self.is_collective())
    }

    /// Its number on its group.
    pub(super) fn sequence(&self) -> u64 {
        self.words[2]
    }

    /// How long ago it ended.
    pub(super) fn ended_ago(&self) -> Duration {
        Duration::from_nanos(now_ns().saturating_sub(self.ended_ns))
    }

    /// How it failed, if it did.
    pub(super) fn failure(&self) -> Option<String> {
        let code = (self.state != DONE && self.state != RUNNING).then_some(self.state)?;
        Some(format!("{:?}", ErrorKind::from_code(u8::try_from(code).unwrap_or(u8::MAX))))
    }

    /// What it is, for messages.
    pub(super) fn operation(&self) -> String {
        let [first, _, sequence, _] = self.words;
        if self.is_collective() {
            let descriptor = Descriptor::decode([first, self.words[1], sequence]);
            return descriptor.map_or("something".to_owned(), |it| it.to_string());
        }
        let (verb, towards) = if first >> 8 & 1 == 1 { ("send", "to") } else { ("recv", "from") };
        match (first >> 32).checked_sub(1) {
            Some(peer) => format!("{verb} #{sequence} {towards} rank {peer}"),
            None => format!("{verb} #{sequence} from any rank"),
        }
    }
}

/// So many of the last entries, the newest first.
pub(super) fn newest(count: usize) -> impl Iterator<Item = Glance> {
    let next = RECORDER.next.load(Ordering::Acquire);
    let first = next.saturating_sub(count.min(ENTRIES) as u64);
    (first..next).rev().filter_map(glance)
}

fn glance(number: u64) -> Option<Glance> {
    let entry = entry(number);
    let load = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
    if entry.stamp.load(Ordering::Acquire) != number + 1 {
        return None;
    }
    // First: who is seen to have ended has its time of that.
    let state = entry.state.load(Ordering::Acquire);
    let glance = Glance {
        group: load(&entry.group),
        rank: load(&entry.rank),
        words: std::array::from_fn(|i| load(&entry.words[i])),
        started_ns: load(&entry.started_ns),
        ended_ns: load(&entry.ended_ns),
        state,
    };
    fence(Ordering::Acquire);
    (load(&entry.stamp) == number + 1).then_some(glance)
}

fn read(number: u64, wanted: Option<u64>) -> Option<Value> {
    let Glance { group, rank, words, started_ns: started, ended_ns: ended, state } =
        glance(number).filter(|it| wanted.is_none_or(|wanted| wanted == it.group))?;
    let mut found = describe(words)?;
    let fields = [
        ("record", json!(number)),
        ("group", json!(format!("{group:016x}"))),
        ("rank", json!(rank)),
        ("started_ns", json!(started)),
        ("ended_ns", if state == RUNNING { Value::Null } else { json!(ended) }),
        ("state", json!(state_name(state))),
    ];
    for (name, value) in fields {
        found[name] = value;
    }
    Some(found)
}

fn state_name(state: u64) -> String {
    match state {
        RUNNING => "running".to_owned(),
        DONE => "done".to_owned(),
        code => {
            let kind = ErrorKind::from_code(u8::try_from(code).unwrap_or(u8::MAX));
            format!("failed: {kind:?}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::error::Error;
    use crate::base::ids::Nonce;
    use crate::transport::OpKind;

    #[test]
    fn the_last_entries_are_kept_with_their_outcome() {
        let group = Nonce(*b"recorder-test-id");
        let barrier = |sequence| Descriptor {
            kind: OpKind::Barrier,
            dtype: None,
            op: None,
            root: None,
            extent: Extent::Count(0),
            sequence,
            algorithm: 0,
        };
        for sequence in 1..=3 {
            let record = begin(group, 1, &barrier(sequence));
            match sequence {
                1 => record.end(&Ok(())),
                2 => record.end(&Err(Error::new(ErrorKind::Timeout, "late"))),
                _ => {}
            }
        }
        let dump = dump(Some(group));
        let entries = dump["entries"].as_array().unwrap();
        let states: Vec<_> = entries.iter().map(|e| e["state"].as_str().unwrap()).collect();
        assert_eq!(states, ["done", "failed: Timeout", "running"]);
        assert_eq!(entries[0]["operation"], "barrier");
    }
}
