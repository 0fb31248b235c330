//! The trace file in the Chrome trace event format: an array with one object per line.
//!
//! The format permits that the end of the array is missing. Therefore the file of a killed process
//! is readable; at worst its last line is cut. Times are microseconds of the host's monotonic clock
//! with three decimals, so files of one host can be merged without conversion. The format's
//! "process" (`pid`) is a rank of the outermost group, and its "thread" (`tid`) is a lane of a
//! group's track. The first line names the clock and its origin, which `dist-doctor trace` reads.
//! For example (shortened):
//!
//! ```text
//! [
//! {"name":"libdist_trace","ph":"M","pid":4,"args":{"clock":"…","monotonic_ns":…}},
//! {"name":"all_reduce","cat":"collective","ph":"X","pid":4,"tid":128,"ts":2.5,"dur":9.0},
//! {"name":"libdist_end","ph":"M","args":{"dropped":0}}
//! ]
//! ```
//!
//! Lines are in the order in which the events ended. Viewers sort the lines by time, and so does
//! `dist-doctor trace` when it merges files.

use super::event::{MONITORED_BARRIER, TraceEvent, TraceEventKind};
use super::track::{GroupTrack, LANES_PER_KIND};
use crate::api::observe::operation_details::{CallSizes, OperationDetails};
use crate::api::p2p::message_descriptor::MessageDescriptor;
use crate::base::dtype::DataType;
use crate::base::error::Error;
use crate::base::ids::Rank;
use crate::base::label::{Label, LabelledName};
use crate::process::this_process::{self, ClockSnapshot};
use crate::transport::{CountSpec, Descriptor};
use serde_json::{Map, Value, json};
use std::collections::HashSet;
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::time::Instant;

/// The version of the format, for readers of the file.
const VERSION: u32 = 1;

/// Writes one trace file.
#[derive(Debug)]
pub(super) struct TraceWriter<W: Write = std::fs::File> {
    out: BufWriter<W>,
    origin: ClockSnapshot,
    /// The processes and threads whose names are already in the file. A process has `None` as its
    /// thread.
    named: HashSet<(Rank, Option<u32>)>,
    /// The number of dropped events that the file already reports.
    reported_drops: u64,
    /// The number of asynchronous spans so far. The id of a span is its number.
    async_spans: u64,
    lines: u64,
}

impl<W: Write> TraceWriter<W> {
    /// Creates the writer of a trace that starts at `origin`.
    pub(super) fn new(file: W, origin: ClockSnapshot) -> Self {
        let (out, named) = (BufWriter::with_capacity(1 << 16, file), HashSet::new());
        Self { out, origin, named, reported_drops: 0, async_spans: 0, lines: 0 }
    }

    /// Writes the events. `dropped` is the number of events dropped since the trace started.
    pub(super) fn write(&mut self, events: &[TraceEvent], dropped: u64) -> io::Result<()> {
        for event in events {
            self.write_names(&event.track, thread_id(event))?;
            self.write_event(event)?;
        }
        if dropped > self.reported_drops {
            let args = json!({ "events": dropped - self.reported_drops, "in_all": dropped });
            self.reported_drops = dropped;
            let last = events.last().map_or(0, |event| event.track.own_global_rank());
            let ts = self.monotonic_us(Instant::now());
            self.write_line(&json!({
                "name": "records lost", "ph": "i", "s": "p", "pid": last, "tid": 0, "ts": ts, "args": args,
            }))?;
        }
        self.out.flush()
    }

    /// Ends the file.
    pub(super) fn finish(mut self) -> io::Result<()> {
        let origin = self.origin;
        if self.lines == 0 {
            self.write_header(&origin, 0)?;
        }
        self.write_line(&json!({
            "name": "libdist_end", "ph": "M", "pid": 0, "tid": 0, "args": { "dropped": self.reported_drops },
        }))?;
        self.out.write_all(b"\n]\n")?;
        self.out.flush()
    }

    /// Writes the first line, which names the clock of all times in the file.
    fn write_header(&mut self, origin: &ClockSnapshot, rank: Rank) -> io::Result<()> {
        let args = json!({
            "version": VERSION,
            "host": this_process::host_name(),
            "pid": this_process::pid(),
            "clock": this_process::clock_domain(),
            "monotonic_ns": origin.monotonic_ns,
            "wall_ns": origin.wall_ns,
        });
        self.write_line(
            &json!({ "name": "libdist_trace", "ph": "M", "pid": rank, "tid": 0, "args": args }),
        )
    }

    /// Writes the names of a process and of a thread, unless they are already in the file.
    fn write_names(&mut self, track: &GroupTrack, thread: Option<u32>) -> io::Result<()> {
        let pid = track.own_global_rank();
        if self.lines == 0 {
            let origin = self.origin;
            self.write_header(&origin, pid)?;
        }
        if self.named.insert((pid, None)) {
            let name = format!(
                "rank {pid} on {} (pid {})",
                this_process::host_name(),
                this_process::pid()
            );
            self.write_metadata("process_name", pid, 0, "name", &json!(name))?;
            self.write_metadata("process_sort_index", pid, 0, "sort_index", &json!(pid))?;
        }
        if let Some(tid) = thread
            && self.named.insert((pid, Some(tid)))
        {
            let lane = tid % LANES_PER_KIND + 1;
            let messages =
                if tid % (2 * LANES_PER_KIND) < LANES_PER_KIND { "" } else { " messages" };
            let name = match lane {
                1 => format!("{}{messages}", track.name),
                _ => format!("{}{messages} ({lane})", track.name),
            };
            self.write_metadata("thread_name", pid, tid, "name", &json!(name))?;
            self.write_metadata("thread_sort_index", pid, tid, "sort_index", &json!(tid))?;
        }
        Ok(())
    }

    fn write_metadata(
        &mut self,
        name: &str,
        pid: Rank,
        tid: u32,
        key: &str,
        value: &Value,
    ) -> io::Result<()> {
        self.write_line(
            &json!({ "name": name, "ph": "M", "pid": pid, "tid": tid, "args": { key: value } }),
        )
    }

    fn write_event(&mut self, event: &TraceEvent) -> io::Result<()> {
        match &event.kind {
            TraceEventKind::Collective { descriptor, details, turn, algorithm, failure } => {
                let mut args = collective_args(&event.track, descriptor, details);
                args.insert("algorithm".into(), json!(algorithm));
                if let Some(turn) = turn {
                    args.insert("started_us".into(), json!(self.monotonic_us(*turn)));
                }
                let (name, label) = (descriptor.call_name(), descriptor.label);
                let name = LabelledName { name, label }.to_string();
                self.write_span(event, "collective", &name, args, failure.as_deref())?;
                self.write_phases(event, *turn, failure.is_some())
            }
            TraceEventKind::Message { message, sequence, failure } => {
                let (name, args) = message_args(&event.track, message, *sequence);
                self.write_span(event, "message", &name, args, failure.as_deref())
            }
            TraceEventKind::MonitoredBarrier { number, timeout_ms, details, failure } => {
                let mut args = group_args(&event.track, *number);
                args.insert("timeout_ms".into(), json!(timeout_ms));
                args.insert("missing".into(), json!(details.missing));
                let name = MONITORED_BARRIER;
                self.write_span(event, name, name, args, failure.as_deref())
            }
            TraceEventKind::DeviceWork { name, sequence } => {
                let mut args = group_args(&event.track, *sequence);
                let time = event.ended.saturating_duration_since(event.began);
                args.insert("device_ms".into(), json!(time.as_secs_f64() * 1000.0));
                self.write_async_span(event, "device", &name.to_string(), Value::Object(args))
            }
            TraceEventKind::Wait { rank } => {
                let name = format!("wait for rank {}", event.track.global_rank(*rank));
                let args = json!({ "rank": rank, "group": event.track.name });
                self.write_slice(event, event.began..event.ended, "wait", &name, args)
            }
        }
    }

    /// Writes the span of an operation. For a failed operation, also writes an instant event at its
    /// end.
    fn write_span(
        &mut self,
        event: &TraceEvent,
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
        let pid = event.track.own_global_rank();
        let tid = thread_id(event).unwrap_or(0);
        if event.lane.is_some() {
            let times = event.began..event.ended;
            self.write_slice(event, times, category, name, Value::Object(args))?;
        } else {
            self.write_async_span(event, category, name, Value::Object(args))?;
        }
        let Some(error) = failure else { return Ok(()) };
        let ts = self.monotonic_us(event.ended);
        self.write_line(&json!({
            "name": state, "cat": "failure", "ph": "i", "s": "p", "pid": pid, "tid": tid, "ts": ts,
            "args": { "operation": name, "error": error.message(), "rank": error.culprit() },
        }))
    }

    /// Writes a span without a lane, as a pair of asynchronous events with a common id. Viewers
    /// draw such spans outside the lanes.
    fn write_async_span(
        &mut self,
        event: &TraceEvent,
        category: &str,
        name: &str,
        args: Value,
    ) -> io::Result<()> {
        let (pid, tid) = (event.track.own_global_rank(), thread_id(event).unwrap_or(0));
        self.async_spans += 1;
        let id = format!("{pid}.{}", self.async_spans);
        for (phase, at, args) in [("b", event.began, args), ("e", event.ended, json!({}))] {
            let ts = self.monotonic_us(at);
            self.write_line(&json!({
                "name": name, "cat": category, "ph": phase, "id": id, "pid": pid, "tid": tid,
                "ts": ts, "args": args,
            }))?;
        }
        Ok(())
    }

    /// Writes the phases of an operation: the wait for its turn, and the work. An operation without
    /// a turn that succeeded has no phases.
    fn write_phases(
        &mut self,
        event: &TraceEvent,
        turn: Option<Instant>,
        has_failed: bool,
    ) -> io::Result<()> {
        if event.lane.is_none() || (turn.is_none() && !has_failed) {
            return Ok(());
        }
        let turn_at = turn.unwrap_or(event.ended);
        if turn.is_none() || self.monotonic_ns(turn_at) > self.monotonic_ns(event.began) + 1000 {
            self.write_slice(event, event.began..turn_at, "phase", "wait for its turn", json!({}))?;
        }
        if turn.is_some() {
            self.write_slice(event, turn_at..event.ended, "phase", "work", json!({}))?;
        }
        Ok(())
    }

    fn write_slice(
        &mut self,
        event: &TraceEvent,
        times: Range<Instant>,
        category: &str,
        name: &str,
        args: Value,
    ) -> io::Result<()> {
        let (began, ended) = (self.monotonic_ns(times.start), self.monotonic_ns(times.end));
        let line = json!({
            "name": name, "cat": category, "ph": "X",
            "pid": event.track.own_global_rank(), "tid": thread_id(event),
            "ts": to_us(began), "dur": to_us(ended.saturating_sub(began)), "args": args,
        });
        self.write_line(&line)
    }

    fn write_line(&mut self, value: &Value) -> io::Result<()> {
        let separator: &[u8] = if self.lines == 0 { b"[\n" } else { b",\n" };
        self.lines += 1;
        self.out.write_all(separator)?;
        serde_json::to_writer(&mut self.out, value).map_err(io::Error::from)
    }

    fn monotonic_ns(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.origin.instant);
        // `at` is earlier than the origin for operations that were running when the trace started.
        let before = self.origin.instant.saturating_duration_since(at);
        let number = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.origin.monotonic_ns.saturating_add(number(since)).saturating_sub(number(before))
    }

    fn monotonic_us(&self, at: Instant) -> f64 {
        to_us(self.monotonic_ns(at))
    }
}

/// Converts nanoseconds to microseconds. A 64-bit float represents times of up to about 100 days
/// with a precision of 1 ns.
#[allow(clippy::cast_precision_loss, reason = "trace viewers represent times as 64-bit floats")]
fn to_us(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

/// Returns the thread number (`tid`) of an event's lane. Each group has 128 consecutive numbers: 64
/// for the lanes of collectives, then 64 for the lanes of messages.
fn thread_id(event: &TraceEvent) -> Option<u32> {
    let side = u32::from(matches!(event.kind, TraceEventKind::Message { .. }));
    let lane = event.lane?;
    Some(
        event
            .track
            .index
            .wrapping_mul(2 * LANES_PER_KIND)
            .wrapping_add(side * LANES_PER_KIND + lane),
    )
}

fn collective_args(
    track: &GroupTrack,
    descriptor: &Descriptor,
    details: &OperationDetails,
) -> Map<String, Value> {
    let mut dtype = descriptor.dtype;
    let count = match descriptor.count_spec {
        CountSpec::Count(count) => Some(count),
        CountSpec::Counts { total, .. } => Some(total),
        CountSpec::Lengths => {
            dtype = Some(DataType::U8);
            details.total_bytes
        }
        CountSpec::Pairwise | CountSpec::Operator | CountSpec::TensorList => None,
    };
    let element = dtype.map_or(1, |dtype| dtype.size()) as u64;
    let mut args = group_args(track, descriptor.sequence);
    args.insert("count".into(), json!(count));
    args.insert("bytes".into(), json!(count.map(|count| count.saturating_mul(element))));
    args.insert("dtype".into(), json!(dtype.map(|dtype| dtype.name())));
    args.insert("op".into(), json!(descriptor.op.map(|op| op.name())));
    args.insert("root".into(), json!(descriptor.root));
    let size = Some(track.global_ranks.len());
    let CallSizes { inputs, outputs } = details.collective_sizes(descriptor, track.rank, size);
    args.insert("input_sizes".into(), json!(inputs));
    args.insert("output_sizes".into(), json!(outputs));
    add_label(&mut args, &descriptor.label);
    args
}

/// Returns the name of a message's span and its arguments.
fn message_args(
    track: &GroupTrack,
    message: &MessageDescriptor,
    sequence: u64,
) -> (String, Map<String, Value>) {
    let MessageDescriptor { is_outgoing, peer, tag, dtype, count, label } = *message;
    // The maximum count marks a receive of any length.
    let bytes = (count != usize::MAX).then(|| count.saturating_mul(dtype.size()));
    let mut args = group_args(track, sequence);
    args.insert("peer".into(), json!(peer));
    args.insert("tag".into(), json!(tag));
    args.insert("dtype".into(), json!(dtype.name()));
    args.insert("bytes".into(), json!(bytes));
    add_label(&mut args, &label);
    let (verb, towards) = if is_outgoing { ("send", "to") } else { ("recv", "from") };
    let verb = LabelledName { name: verb, label };
    let name = match peer {
        Some(peer) => format!("{verb} {towards} rank {}", track.global_rank(peer)),
        None => format!("{verb} {towards} any rank"),
    };
    (name, args)
}

/// Adds the label, if there is one.
fn add_label(args: &mut Map<String, Value>, label: &Label) {
    if !label.is_none() {
        args.insert("label".into(), json!(label.text()));
    }
}

fn group_args(track: &GroupTrack, sequence: u64) -> Map<String, Value> {
    let mut args = Map::new();
    args.insert("group".into(), json!(track.name));
    args.insert("group_id".into(), json!(track.id.to_string()));
    args.insert("rank".into(), json!(track.rank));
    args.insert("ranks".into(), json!(track.global_ranks.len()));
    args.insert("sequence".into(), json!(sequence));
    args
}
