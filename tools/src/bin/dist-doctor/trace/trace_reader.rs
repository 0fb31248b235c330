//! Reads the traces of the ranks line by line, checks them, and builds an index of their events in
//! memory.
//!
//! A trace is a JSON array with one event per line. The first event names the clock of the process.
//! If a process was killed, the end of the array is missing, and the last line may be incomplete.
//! Every other deviation from the format is an error.

use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};

/// The largest number of events that are merged. The index of so many events takes half a gigabyte.
pub(crate) const MAX_EVENTS: usize = 20_000_000;

/// The largest number of bytes in a line. An event usually has a few hundred bytes, but the event
/// of a failure includes the error message.
const MAX_LINE_BYTES: usize = 1 << 20;

/// The largest number of operations of a file that are used to align its clock.
const MAX_CLOCK_SAMPLES: usize = 1 << 16;

/// The supported version of the format.
const FORMAT_VERSION: u64 = 1;

/// Collectives in which no rank ends before all ranks have begun.
const SYNCHRONISING_COLLECTIVES: &[&str] =
    &["all_reduce", "all_gather", "all_gather_bytes", "reduce_scatter", "all_to_all", "barrier"];

/// The clock of a process, as its trace describes it.
#[derive(Clone, Debug)]
pub(crate) struct TraceClock {
    pub(crate) host: String,
    pub(crate) pid: u64,
    /// The name of the clock domain. It is equal for all processes that share the clock.
    pub(crate) domain: String,
    /// A time on this clock.
    pub(crate) monotonic_ns: i64,
    /// The same moment as `monotonic_ns` on the wall clock.
    pub(crate) wall_ns: i64,
}

/// The begin and end of one operation on the clock of the rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClockSample {
    /// The group's id and the sequence number, which are the same on all ranks.
    pub(crate) key: (u128, u64),
    pub(crate) begun_ns: i64,
    pub(crate) ended_ns: i64,
}

/// One trace file.
#[derive(Debug)]
pub(crate) struct TraceSource {
    pub(crate) path: PathBuf,
    pub(crate) clock: TraceClock,
    pub(crate) ranks: BTreeSet<usize>,
    pub(crate) clock_samples: Vec<ClockSample>,
    /// `clock_samples` contains only the operations whose sequence number is a multiple of
    /// `stride`.
    stride: u64,
    pub(crate) is_complete: bool,
    pub(crate) dropped_records: u64,
}

/// The location of an event in its file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EventLocation {
    /// The time of the event on the clock of its file, or [`NO_TIME`].
    pub(crate) ns: i64,
    pub(crate) offset: u64,
    pub(crate) source: u32,
    pub(crate) len: u32,
}

/// The time of an event that only gives a name to a process or thread. Because it is the smallest
/// time, these events come first in the merged trace.
pub(crate) const NO_TIME: i64 = i64::MIN;

/// The index of all traces that have been read.
#[derive(Debug, Default)]
pub(crate) struct TraceIndex {
    pub(crate) sources: Vec<TraceSource>,
    pub(crate) events: Vec<EventLocation>,
}

/// The reason why a file cannot be used.
#[derive(Debug)]
pub(crate) struct TraceError {
    pub(crate) message: String,
    /// True if the file is not a trace of libdist. False if it is a defective trace.
    pub(crate) is_not_a_trace: bool,
}

fn trace_error(message: impl Into<String>) -> TraceError {
    TraceError { message: message.into(), is_not_a_trace: false }
}

fn not_a_trace_error(message: impl Into<String>) -> TraceError {
    TraceError { message: message.into(), is_not_a_trace: true }
}

impl TraceIndex {
    /// Reads one file.
    ///
    /// # Errors
    /// The defect and its line number.
    pub(crate) fn read_file(&mut self, path: &Path) -> Result<(), TraceError> {
        let failed = |cause: std::io::Error| trace_error(cause.to_string());
        let metadata = std::fs::metadata(path).map_err(failed)?;
        if !metadata.is_file() {
            return Err(not_a_trace_error("not a regular file"));
        }
        let mut lines = EventReader {
            reader: BufReader::new(File::open(path).map_err(failed)?),
            offset: 0,
            line_number: 0,
        };
        let mut source: Option<TraceSource> = None;
        let number =
            u32::try_from(self.sources.len()).map_err(|_| trace_error("too many files"))?;
        while let Some(line) = lines.next_event()? {
            let Some(event) = line.event else {
                if line.is_last
                    && let Some(source) = &mut source
                {
                    source.is_complete = false;
                    break;
                }
                let message = format!("line {} is not a trace event", line.line_number);
                return Err(if source.is_none() {
                    not_a_trace_error(message)
                } else {
                    trace_error(message)
                });
            };
            let Some(source) = &mut source else {
                source = Some(parse_first_event(path, &event)?);
                continue;
            };
            let with_line_number =
                |problem: String| trace_error(format!("line {}: {problem}", line.line_number));
            let Some(ns) = source.add_event(&event).map_err(with_line_number)? else { continue };
            if self.events.len() == MAX_EVENTS {
                let message = format!(
                    "more than {MAX_EVENTS} events in all files: merge fewer ranks, or shorter traces"
                );
                return Err(trace_error(message));
            }
            self.events.push(EventLocation {
                ns,
                offset: line.offset,
                source: number,
                len: line.len,
            });
        }
        let source = source.ok_or_else(|| not_a_trace_error("the file has no event"))?;
        self.sources.push(source);
        Ok(())
    }
}

/// Parses the first line of a trace.
fn parse_first_event(path: &Path, event: &Value) -> Result<TraceSource, TraceError> {
    let args = &event["args"];
    if event["name"] != "libdist_trace" {
        return Err(not_a_trace_error(
            "not a trace of libdist: the first event is not \"libdist_trace\"",
        ));
    }
    if args["version"] != FORMAT_VERSION {
        let version = crate::text::printable_line(&args["version"].to_string(), 20);
        return Err(trace_error(format!(
            "version {version} is not supported; this program reads version {FORMAT_VERSION}"
        )));
    }
    let text = |name: &str| args[name].as_str().map(str::to_owned);
    let number = |name: &str| args[name].as_i64().filter(|&number| number >= 0);
    let clock = || {
        Some(TraceClock {
            host: text("host")?,
            pid: args["pid"].as_u64()?,
            domain: text("clock")?,
            monotonic_ns: number("monotonic_ns")?,
            wall_ns: number("wall_ns")?,
        })
    };
    let mut clock =
        clock().ok_or_else(|| trace_error("the first event lacks a field of the clock"))?;
    if clock.domain.is_empty() {
        // The trace names no clock domain. Use the path as the domain, because no other process is
        // known to share the clock.
        clock.domain = path.display().to_string();
    }
    Ok(TraceSource {
        path: path.to_owned(),
        clock,
        ranks: BTreeSet::new(),
        clock_samples: Vec::new(),
        stride: 1,
        is_complete: false,
        dropped_records: 0,
    })
}

impl TraceSource {
    /// Records the data of an event. Returns its time, or `None` if it does not belong in the
    /// merged file.
    fn add_event(&mut self, event: &Value) -> Result<Option<i64>, String> {
        if event["name"] == "libdist_end" {
            self.dropped_records = event["args"]["dropped"].as_u64().unwrap_or(0);
            self.is_complete = true;
            return Ok(None);
        }
        let rank = event["pid"].as_u64().and_then(|rank| usize::try_from(rank).ok());
        let rank = rank.filter(|&rank| rank < 1 << 32).ok_or("pid is not a rank")?;
        self.ranks.insert(rank);
        if event["ph"] == "M" {
            return Ok(Some(NO_TIME));
        }
        let ns = microseconds_to_ns(&event["ts"]).ok_or("ts is not a time in microseconds")?;
        if let Some(sample) = clock_sample(event, ns) {
            self.add_clock_sample(sample);
        }
        Ok(Some(ns))
    }

    /// Adds a sample. If there are too many, doubles `stride` and keeps only the operations whose
    /// sequence number is a multiple of it. So `stride` is a power of two in all files, and
    /// different files keep common operations.
    fn add_clock_sample(&mut self, sample: ClockSample) {
        if sample.key.1.is_multiple_of(self.stride) {
            self.clock_samples.push(sample);
        }
        if self.clock_samples.len() > MAX_CLOCK_SAMPLES {
            self.stride *= 2;
            let stride = self.stride;
            self.clock_samples.retain(|sample| sample.key.1.is_multiple_of(stride));
        }
    }
}

/// Returns the clock sample of an event, or `None` if the event is not an operation that
/// synchronises its ranks.
fn clock_sample(event: &Value, ns: i64) -> Option<ClockSample> {
    let args = &event["args"];
    // The name of the operation, before the label.
    let name = event["name"].as_str().and_then(|name| name.split(' ').next());
    let name = name.filter(|name| SYNCHRONISING_COLLECTIVES.contains(name))?;
    // An operation without data need not wait for other ranks, except a barrier.
    let is_synchronising = name == "barrier" || args["bytes"].as_u64()? > 0;
    if !is_synchronising
        || event["ph"] != "X"
        || args["state"] != "done"
        || args["ranks"].as_u64()? < 2
    {
        return None;
    }
    let group = u128::from_str_radix(args["group_id"].as_str()?, 16).ok()?;
    let begun_ns = microseconds_to_ns(&args["started_us"]).unwrap_or(ns);
    let ended_ns = ns.checked_add(microseconds_to_ns(&event["dur"])?)?;
    let key = (group, args["sequence"].as_u64()?);
    (begun_ns <= ended_ns).then_some(ClockSample { key, begun_ns, ended_ns })
}

/// Converts microseconds to nanoseconds.
#[allow(clippy::cast_possible_truncation, reason = "the line below checks the range")]
fn microseconds_to_ns(us: &Value) -> Option<i64> {
    let ns = us.as_f64()? * 1000.0;
    (ns.is_finite() && (0.0..9e18).contains(&ns)).then(|| ns.round() as i64)
}

/// Reads the events of a file.
struct EventReader {
    reader: BufReader<File>,
    offset: u64,
    line_number: u64,
}

struct EventLine {
    line_number: u64,
    /// The position of the event's JSON object in the file.
    offset: u64,
    len: u32,
    /// `None` if the line is not valid JSON.
    event: Option<Value>,
    /// True if the file ends directly after the event, without the end of the line.
    is_last: bool,
}

impl EventReader {
    /// Returns the next event, or `None` at the end.
    fn next_event(&mut self) -> Result<Option<EventLine>, TraceError> {
        loop {
            let mut bytes = Vec::new();
            let limit = MAX_LINE_BYTES as u64 + 2;
            let got = self.reader.by_ref().take(limit).read_until(b'\n', &mut bytes);
            got.map_err(|cause| trace_error(cause.to_string()))?;
            if bytes.is_empty() {
                return Ok(None);
            }
            let at = self.offset;
            self.offset += bytes.len() as u64;
            self.line_number += 1;
            if bytes.len() > MAX_LINE_BYTES {
                let message =
                    format!("line {} has more than {MAX_LINE_BYTES} bytes", self.line_number);
                return Err(if self.line_number == 1 {
                    not_a_trace_error(message)
                } else {
                    trace_error(message)
                });
            }
            let is_last = bytes.last() != Some(&b'\n');
            let text = bytes.trim_ascii_end();
            let object = text.strip_suffix(b",").unwrap_or(text);
            if matches!(object, b"" | b"[" | b"]") {
                continue;
            }
            let event = serde_json::from_slice(object).ok().filter(Value::is_object);
            let len = u32::try_from(object.len()).unwrap_or(u32::MAX);
            return Ok(Some(EventLine {
                line_number: self.line_number,
                offset: at,
                len,
                event,
                is_last,
            }));
        }
    }
}
