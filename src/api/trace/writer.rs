//! The form of the file: the Chrome trace event format, an array of objects, one a line.
//!
//! The format allows an array without its end, so that the file of a process that was killed can be
//! read as it is; at worst its last line is cut. Times are microseconds of the host's monotonic
//! clock, with three decimals: files of one host lie beside each other without further ado. A
//! process of the trace is a rank of the outermost group, a thread of it a lane of a group. The
//! first line says which clock this is, and what the others are relative to (`dist-doctor trace`
//! reads it).
//!
//! Lines are written in the order in which things ended; viewers and the merge sort them.

use super::track::LANES;
use super::{Event, Message, Track, What};
use crate::base::error::Error;
use crate::base::ids::Rank;
use crate::base::label::{Label, LabelledName};
use crate::process::this::{self, Moment};
use crate::transport::{Descriptor, Extent};
use serde_json::{Map, Value, json};
use std::collections::HashSet;
use std::io::{self, BufWriter, Write};
use std::time::Instant;

/// What the format's version is, for who reads it.
const VERSION: u32 = 1;

/// Writes one file.
#[derive(Debug)]
pub(super) struct Writer<W: Write = std::fs::File> {
    out: BufWriter<W>,
    origin: Moment,
    /// Processes and threads that have a name in the file.
    named: HashSet<(Rank, Option<u32>)>,
    /// How many lost records the file tells of.
    dropped: u64,
    /// Numbers spans that may overlap.
    spans: u64,
    lines: u64,
}

impl<W: Write> Writer<W> {
    /// Of a trace that begins at `origin`.
    pub(super) fn new(file: W, origin: Moment) -> Self {
        let (out, named) = (BufWriter::with_capacity(1 << 16, file), HashSet::new());
        Self { out, origin, named, dropped: 0, spans: 0, lines: 0 }
    }

    /// Writes what has happened; `dropped` is how much has been lost since the beginning.
    pub(super) fn write(&mut self, events: &[Event], dropped: u64) -> io::Result<()> {
        for event in events {
            self.name(&event.track, thread(event))?;
            self.event(event)?;
        }
        if dropped > self.dropped {
            let args = json!({ "events": dropped - self.dropped, "in_all": dropped });
            self.dropped = dropped;
            let last = events.last().map_or(0, |event| event.track.global(event.track.rank));
            let ts = self.us(Instant::now());
            self.line(&json!({
                "name": "records lost", "ph": "i", "s": "p", "pid": last, "tid": 0, "ts": ts, "args": args,
            }))?;
        }
        self.out.flush()
    }

    /// Ends the file.
    pub(super) fn finish(mut self) -> io::Result<()> {
        let origin = self.origin;
        if self.lines == 0 {
            self.begin(&origin, 0)?;
        }
        self.line(&json!({
            "name": "libdist_end", "ph": "M", "pid": 0, "tid": 0, "args": { "dropped": self.dropped },
        }))?;
        self.out.write_all(b"\n]\n")?;
        self.out.flush()
    }

    /// Which clock the times are of.
    fn begin(&mut self, origin: &Moment, rank: Rank) -> io::Result<()> {
        let args = json!({
            "version": VERSION,
            "host": this::host_name(),
            "pid": this::pid(),
            "clock": this::clock_domain(),
            "monotonic_ns": origin.monotonic_ns,
            "wall_ns": origin.wall_ns,
        });
        self.line(
            &json!({ "name": "libdist_trace", "ph": "M", "pid": rank, "tid": 0, "args": args }),
        )
    }

    /// Gives a process and a thread their names, once.
    fn name(&mut self, track: &Track, thread: Option<u32>) -> io::Result<()> {
        let pid = track.global(track.rank);
        if self.lines == 0 {
            let origin = self.origin;
            self.begin(&origin, pid)?;
        }
        if self.named.insert((pid, None)) {
            let name = format!("rank {pid} on {} (pid {})", this::host_name(), this::pid());
            self.metadata("process_name", pid, 0, "name", &json!(name))?;
            self.metadata("process_sort_index", pid, 0, "sort_index", &json!(pid))?;
        }
        if let Some(tid) = thread
            && self.named.insert((pid, Some(tid)))
        {
            let lane = tid % LANES + 1;
            let messages = if tid % (2 * LANES) < LANES { "" } else { " messages" };
            let name = match lane {
                1 => format!("{}{messages}", track.name),
                _ => format!("{}{messages} ({lane})", track.name),
            };
            self.metadata("thread_name", pid, tid, "name", &json!(name))?;
            self.metadata("thread_sort_index", pid, tid, "sort_index", &json!(tid))?;
        }
        Ok(())
    }

    fn metadata(
        &mut self,
        name: &str,
        pid: Rank,
        tid: u32,
        key: &str,
        value: &Value,
    ) -> io::Result<()> {
        self.line(
            &json!({ "name": name, "ph": "M", "pid": pid, "tid": tid, "args": { key: value } }),
        )
    }

    fn event(&mut self, event: &Event) -> io::Result<()> {
        match &event.what {
            What::Collective { descriptor, turn, algorithm, failure } => {
                let mut args = describe(&event.track, descriptor);
                args.insert("algorithm".into(), json!(algorithm));
                if let Some(turn) = turn {
                    args.insert("started_us".into(), json!(self.us(*turn)));
                }
                let (name, label) = (descriptor.kind.name(), descriptor.label);
                let name = LabelledName { name, label }.to_string();
                self.span(event, "collective", &name, args, failure.as_deref())?;
                self.phases(event, *turn, failure.is_some())
            }
            What::Message { message, sequence, failure } => {
                let (name, args) = describe_message(&event.track, message, *sequence);
                self.span(event, "message", &name, args, failure.as_deref())
            }
            What::Wait { rank } => {
                let name = format!("wait for rank {}", event.track.global(*rank));
                let args = json!({ "rank": rank, "group": event.track.name });
                self.slice(event, (event.began, event.ended), "wait", &name, args)
            }
        }
    }

    /// A whole operation, and the moment of its failure.
    fn span(
        &mut self,
        event: &Event,
        category: &str,
        name: &str,
        mut args: Map<String, Value>,
        failure: Option<&Error>,
    ) -> io::Result<()> {
        let state =
            failure.map_or("done".to_owned(), |error| format!("failed: {:?}", error.kind()));
        args.insert("state".into(), json!(state));
        if let Some(error) = failure {
            args.insert("error".into(), json!(error.message()));
        }
        let pid = event.track.global(event.track.rank);
        let tid = thread(event).unwrap_or(0);
        if event.lane.is_some() {
            let times = (event.began, event.ended);
            self.slice(event, times, category, name, Value::Object(args))?;
        } else {
            // A pair of its own number, which viewers draw apart.
            self.spans += 1;
            let id = format!("{pid}.{}", self.spans);
            for (phase, at, args) in
                [("b", event.began, Value::Object(args)), ("e", event.ended, json!({}))]
            {
                let ts = self.us(at);
                self.line(&json!({
                    "name": name, "cat": category, "ph": phase, "id": id, "pid": pid, "tid": tid,
                    "ts": ts, "args": args,
                }))?;
            }
        }
        let Some(error) = failure else { return Ok(()) };
        let ts = self.us(event.ended);
        self.line(&json!({
            "name": state, "cat": "failure", "ph": "i", "s": "p", "pid": pid, "tid": tid, "ts": ts,
            "args": { "operation": name, "error": error.message(), "rank": error.culprit() },
        }))
    }

    /// Waiting for the turn, and what was done in it. The second operation of a call has that of
    /// the first.
    fn phases(&mut self, event: &Event, turn: Option<Instant>, has_failed: bool) -> io::Result<()> {
        if event.lane.is_none() || (turn.is_none() && !has_failed) {
            return Ok(());
        }
        let turn_at = turn.unwrap_or(event.ended);
        if turn.is_none() || self.ns(turn_at) > self.ns(event.began) + 1000 {
            self.slice(event, (event.began, turn_at), "phase", "wait for its turn", json!({}))?;
        }
        if turn.is_some() {
            self.slice(event, (turn_at, event.ended), "phase", "work", json!({}))?;
        }
        Ok(())
    }

    fn slice(
        &mut self,
        event: &Event,
        (began, ended): (Instant, Instant),
        category: &str,
        name: &str,
        args: Value,
    ) -> io::Result<()> {
        let (began, ended) = (self.ns(began), self.ns(ended));
        let line = json!({
            "name": name, "cat": category, "ph": "X",
            "pid": event.track.global(event.track.rank), "tid": thread(event),
            "ts": to_us(began), "dur": to_us(ended.saturating_sub(began)), "args": args,
        });
        self.line(&line)
    }

    fn line(&mut self, value: &Value) -> io::Result<()> {
        let separator: &[u8] = if self.lines == 0 { b"[\n" } else { b",\n" };
        self.lines += 1;
        self.out.write_all(separator)?;
        serde_json::to_writer(&mut self.out, value).map_err(io::Error::from)
    }

    fn ns(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.origin.instant);
        // What was under way when the trace began.
        let before = self.origin.instant.saturating_duration_since(at);
        let number = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.origin.monotonic_ns.saturating_add(number(since)).saturating_sub(number(before))
    }

    fn us(&self, at: Instant) -> f64 {
        to_us(self.ns(at))
    }
}

/// A double has the nanoseconds of a hundred days.
#[allow(clippy::cast_precision_loss, reason = "a viewer's times are doubles")]
fn to_us(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

/// The lane as a thread of the process.
fn thread(event: &Event) -> Option<u32> {
    let side = u32::from(matches!(event.what, What::Message { .. }));
    let lane = event.lane?;
    Some(event.track.index.wrapping_mul(2 * LANES).wrapping_add(side * LANES + lane))
}

fn describe(track: &Track, descriptor: &Descriptor) -> Map<String, Value> {
    let count = match descriptor.extent {
        Extent::Count(count) => Some(count),
        Extent::Counts { total, .. } => Some(total),
        Extent::Lengths => Some(1),
        Extent::Pairwise | Extent::Operator => None,
    };
    let element = descriptor.dtype.map_or(1, |dtype| dtype.size()) as u64;
    let mut args = identify(track, descriptor.sequence);
    args.insert("count".into(), json!(count));
    args.insert("bytes".into(), json!(count.map(|count| count.saturating_mul(element))));
    args.insert("dtype".into(), json!(descriptor.dtype.map(|dtype| dtype.name())));
    args.insert("op".into(), json!(descriptor.op.map(|op| op.name())));
    args.insert("root".into(), json!(descriptor.root));
    add_label(&mut args, &descriptor.label);
    args
}

/// The name of a message's span, and what there is to know.
fn describe_message(
    track: &Track,
    message: &Message,
    sequence: u64,
) -> (String, Map<String, Value>) {
    let Message { is_outgoing, peer, tag, dtype, count, label } = *message;
    // A receive of any length says so with the largest count.
    let bytes = (count != usize::MAX).then(|| count.saturating_mul(dtype.size()));
    let mut args = identify(track, sequence);
    args.insert("peer".into(), json!(peer));
    args.insert("tag".into(), json!(tag));
    args.insert("dtype".into(), json!(dtype.name()));
    args.insert("bytes".into(), json!(bytes));
    add_label(&mut args, &label);
    let (verb, towards) = if is_outgoing { ("send", "to") } else { ("recv", "from") };
    let verb = LabelledName { name: verb, label };
    let name = match peer {
        Some(peer) => format!("{verb} {towards} rank {}", track.global(peer)),
        None => format!("{verb} {towards} any rank"),
    };
    (name, args)
}

/// The label, if there is one.
fn add_label(args: &mut Map<String, Value>, label: &Label) {
    if !label.is_none() {
        args.insert("label".into(), json!(label.text()));
    }
}

fn identify(track: &Track, sequence: u64) -> Map<String, Value> {
    let mut args = Map::new();
    args.insert("group".into(), json!(track.name));
    args.insert("group_id".into(), json!(track.id.to_string()));
    args.insert("rank".into(), json!(track.rank));
    args.insert("ranks".into(), json!(track.ranks.len()));
    args.insert("sequence".into(), json!(sequence));
    args
}
