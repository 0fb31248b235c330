//! The traces of ranks: read line by line, checked, and kept as an index.
//!
//! A trace is an array with one event a line, whose first says which clock it is by. Of a process
//! that was killed the end is missing and the last line may be cut; that is all that may be wrong
//! with a file.

use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};

/// How many events are merged: half a gigabyte of index.
pub(crate) const MOST_EVENTS: usize = 20_000_000;

/// The longest line; an event has some hundred bytes, and that of a failure its message.
const LONGEST_LINE: usize = 1 << 20;

/// How many operations of a file are looked at for the clock.
const MOST_SIGHTINGS: usize = 1 << 16;

/// The version of the format that is understood.
const VERSION: u64 = 1;

/// Collectives in which no rank ends before all have begun.
const TOGETHER: &[&str] = &["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"];

/// What a process wrote about its clock.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    pub(crate) host: String,
    pub(crate) pid: u64,
    /// The same for all processes that share the clock.
    pub(crate) domain: String,
    /// One moment on it, and on the wall.
    pub(crate) monotonic_ns: i64,
    pub(crate) wall_ns: i64,
}

/// One operation that a rank was in, by the rank's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sighting {
    /// The group's id and the operation's number: the same on all ranks.
    pub(crate) key: (u128, u64),
    pub(crate) begun_ns: i64,
    pub(crate) ended_ns: i64,
}

/// One file.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) path: PathBuf,
    pub(crate) clock: Clock,
    pub(crate) ranks: BTreeSet<usize>,
    pub(crate) sightings: Vec<Sighting>,
    /// Of the numbers of operations, only multiples of this have been kept.
    stride: u64,
    pub(crate) is_whole: bool,
    pub(crate) lost: u64,
}

/// Where an event is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// By the clock of its file; `None`, as a number, for what has no time.
    pub(crate) ns: i64,
    pub(crate) at: u64,
    pub(crate) source: u32,
    pub(crate) len: u32,
}

/// The time of names, which come first.
pub(crate) const TIMELESS: i64 = i64::MIN;

/// Everything that has been read.
#[derive(Debug, Default)]
pub(crate) struct Index {
    pub(crate) sources: Vec<Source>,
    pub(crate) entries: Vec<Entry>,
}

/// Why a file cannot be used.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) message: String,
    /// It is no trace of libdist at all.
    pub(crate) is_foreign: bool,
}

fn refusal(message: impl Into<String>) -> Refusal {
    Refusal { message: message.into(), is_foreign: false }
}

fn foreign(message: impl Into<String>) -> Refusal {
    Refusal { message: message.into(), is_foreign: true }
}

impl Index {
    /// Reads one file.
    ///
    /// # Errors
    /// What is wrong with it, and in which line.
    pub(crate) fn read(&mut self, path: &Path) -> Result<(), Refusal> {
        let failed = |cause: std::io::Error| refusal(cause.to_string());
        let about = std::fs::metadata(path).map_err(failed)?;
        if !about.is_file() {
            return Err(foreign("it is no ordinary file"));
        }
        let mut lines =
            Lines { reader: BufReader::new(File::open(path).map_err(failed)?), at: 0, number: 0 };
        let mut source: Option<Source> = None;
        let number = u32::try_from(self.sources.len()).map_err(|_| refusal("too many files"))?;
        while let Some(line) = lines.next()? {
            let Some(event) = line.event else {
                if line.is_last
                    && let Some(source) = &mut source
                {
                    source.is_whole = false;
                    break;
                }
                let message = format!("line {} is no event of a trace", line.number);
                return Err(if source.is_none() { foreign(message) } else { refusal(message) });
            };
            let Some(source) = &mut source else {
                source = Some(head(path, &event)?);
                continue;
            };
            let in_line = |why: String| refusal(format!("line {}: {why}", line.number));
            let Some(ns) = source.take(&event).map_err(in_line)? else { continue };
            if self.entries.len() == MOST_EVENTS {
                let message = format!(
                    "more than {MOST_EVENTS} events in all: merge fewer ranks, or shorter traces"
                );
                return Err(refusal(message));
            }
            self.entries.push(Entry { ns, at: line.at, source: number, len: line.len });
        }
        let source = source.ok_or_else(|| foreign("there is no event in it"))?;
        self.sources.push(source);
        Ok(())
    }
}

/// The first line of a trace.
fn head(path: &Path, event: &Value) -> Result<Source, Refusal> {
    let args = &event["args"];
    if event["name"] != "libdist_trace" {
        return Err(foreign(
            "it is no trace of libdist, whose first event says which clock it is by",
        ));
    }
    if args["version"] != VERSION {
        let version = crate::text::line(&args["version"].to_string(), 20);
        return Err(refusal(format!("its version is {version}; this program reads {VERSION}")));
    }
    let text = |name: &str| args[name].as_str().map(str::to_owned);
    let number = |name: &str| args[name].as_i64().filter(|&number| number >= 0);
    let clock = || {
        Some(Clock {
            host: text("host")?,
            pid: args["pid"].as_u64()?,
            domain: text("clock")?,
            monotonic_ns: number("monotonic_ns")?,
            wall_ns: number("wall_ns")?,
        })
    };
    let mut clock = clock().ok_or_else(|| refusal("its first event lacks a part of the clock"))?;
    if clock.domain.is_empty() {
        // Nothing says who shares it: nobody.
        clock.domain = path.display().to_string();
    }
    Ok(Source {
        path: path.to_owned(),
        clock,
        ranks: BTreeSet::new(),
        sightings: Vec::new(),
        stride: 1,
        is_whole: false,
        lost: 0,
    })
}

impl Source {
    /// Takes what is to be known of an event; its time, unless it is none for the merged file.
    fn take(&mut self, event: &Value) -> Result<Option<i64>, String> {
        if event["name"] == "libdist_end" {
            self.lost = event["args"]["dropped"].as_u64().unwrap_or(0);
            self.is_whole = true;
            return Ok(None);
        }
        let rank = event["pid"].as_u64().and_then(|rank| usize::try_from(rank).ok());
        let rank = rank.filter(|&rank| rank < 1 << 32).ok_or("pid is no rank")?;
        self.ranks.insert(rank);
        if event["ph"] == "M" {
            return Ok(Some(TIMELESS));
        }
        let ns = in_ns(&event["ts"]).ok_or("ts is no time in microseconds")?;
        if let Some(sighting) = sighting(event, ns) {
            self.note(sighting);
        }
        Ok(Some(ns))
    }

    /// Keeps the operations whose numbers are multiples of a power of two, the same ones of all
    /// files.
    fn note(&mut self, sighting: Sighting) {
        if sighting.key.1.is_multiple_of(self.stride) {
            self.sightings.push(sighting);
        }
        if self.sightings.len() > MOST_SIGHTINGS {
            self.stride *= 2;
            let stride = self.stride;
            self.sightings.retain(|sighting| sighting.key.1.is_multiple_of(stride));
        }
    }
}

/// An operation that says something about clocks.
fn sighting(event: &Value, ns: i64) -> Option<Sighting> {
    let args = &event["args"];
    // The name of the operation, before the label.
    let name = event["name"].as_str().and_then(|name| name.split(' ').next());
    let name = name.filter(|name| TOGETHER.contains(name))?;
    // Of nothing there is nothing to wait for.
    let has_met = name == "barrier" || args["bytes"].as_u64()? > 0;
    if !has_met || event["ph"] != "X" || args["state"] != "done" || args["ranks"].as_u64()? < 2 {
        return None;
    }
    let group = u128::from_str_radix(args["group_id"].as_str()?, 16).ok()?;
    let begun_ns = in_ns(&args["started_us"]).unwrap_or(ns);
    let ended_ns = ns.checked_add(in_ns(&event["dur"])?)?;
    let key = (group, args["sequence"].as_u64()?);
    (begun_ns <= ended_ns).then_some(Sighting { key, begun_ns, ended_ns })
}

/// Microseconds as nanoseconds.
#[allow(clippy::cast_possible_truncation, reason = "checked to be within the range")]
fn in_ns(us: &Value) -> Option<i64> {
    let ns = us.as_f64()? * 1000.0;
    (ns.is_finite() && (0.0..9e18).contains(&ns)).then(|| ns.round() as i64)
}

/// The events of a file.
struct Lines {
    reader: BufReader<File>,
    at: u64,
    number: u64,
}

struct Line {
    number: u64,
    /// Where the event's object is.
    at: u64,
    len: u32,
    /// `None` for what cannot be read.
    event: Option<Value>,
    /// Nothing follows, not even the end of the line.
    is_last: bool,
}

impl Lines {
    /// The next event; `None` at the end.
    fn next(&mut self) -> Result<Option<Line>, Refusal> {
        loop {
            let mut bytes = Vec::new();
            let limit = LONGEST_LINE as u64 + 2;
            let got = self.reader.by_ref().take(limit).read_until(b'\n', &mut bytes);
            got.map_err(|cause| refusal(cause.to_string()))?;
            if bytes.is_empty() {
                return Ok(None);
            }
            let at = self.at;
            self.at += bytes.len() as u64;
            self.number += 1;
            if bytes.len() > LONGEST_LINE {
                let message = format!("line {} has more than {LONGEST_LINE} bytes", self.number);
                return Err(if self.number == 1 { foreign(message) } else { refusal(message) });
            }
            let is_last = bytes.last() != Some(&b'\n');
            let text = bytes.trim_ascii_end();
            let object = text.strip_suffix(b",").unwrap_or(text);
            if matches!(object, b"" | b"[" | b"]") {
                continue;
            }
            let event = serde_json::from_slice(object).ok().filter(Value::is_object);
            let len = u32::try_from(object.len()).unwrap_or(u32::MAX);
            return Ok(Some(Line { number: self.number, at, len, event, is_last }));
        }
    }
}
