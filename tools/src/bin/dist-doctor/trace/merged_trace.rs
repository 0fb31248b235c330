//! Writes the merged trace. It contains every event of every trace, ordered by time on the common
//! clock. The first event has the time 0.
//!
//! The file is written under a temporary name and then renamed, so that the requested path never
//! has an incomplete file.

use super::clock_alignment::ClockAlignment;
use super::trace_reader::{EventLocation, NO_TIME, TraceIndex};
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// The largest number of simultaneously open traces.
const MAX_OPEN_FILES: usize = 256;

/// Writes the merged trace. Returns the number of its events, without the events that only give
/// names to processes and threads.
///
/// # Errors
/// The action that failed, with the name of the file if it is not the output file.
pub(crate) fn write_merged(
    index: &TraceIndex,
    alignment: &ClockAlignment,
    output: &Path,
) -> Result<u64, String> {
    let mut entries: Vec<EventLocation> = index.events.clone();
    for entry in entries.iter_mut().filter(|entry| entry.ns != NO_TIME) {
        let source = &index.sources[entry.source as usize];
        entry.ns = alignment.to_common_clock(&source.clock.domain, entry.ns);
    }
    entries.sort_by_key(|entry| (entry.ns, entry.source, entry.offset));
    let mut partial_path = output.as_os_str().to_owned();
    partial_path.push(".part");
    let partial_path = PathBuf::from(partial_path);
    let written = File::create(&partial_path)
        .map_err(|cause| cause.to_string())
        .and_then(|file| write_events(index, &entries, BufWriter::with_capacity(1 << 16, file)))
        .and_then(|count| {
            fs::rename(&partial_path, output).map(|()| count).map_err(|cause| cause.to_string())
        });
    if written.is_err() {
        // The file is incomplete, so remove it.
        drop(fs::remove_file(&partial_path));
    }
    written
}

fn write_events(
    index: &TraceIndex,
    entries: &[EventLocation],
    mut out: impl Write,
) -> Result<u64, String> {
    let failed = |cause: io::Error| cause.to_string();
    let first = entries.iter().map(|entry| entry.ns).find(|&ns| ns != NO_TIME).unwrap_or(0);
    let pids = replacement_pids(index);
    let mut files = TraceFiles { index, open: HashMap::new() };
    out.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[").map_err(failed)?;
    let mut separator: &[u8] = b"\n";
    let mut count = 0;
    for entry in entries {
        let mut event = files.read_event(entry)?;
        let rank = event["pid"].as_u64().unwrap_or(0);
        if let Some(pid) = pids.get(&(entry.source, rank)) {
            event["pid"] = json!(pid);
        }
        if entry.ns != NO_TIME {
            event["ts"] = json!(microseconds_since(first, entry.ns));
            count += 1;
        }
        out.write_all(separator).map_err(failed)?;
        serde_json::to_writer(&mut out, &event).map_err(|cause| failed(cause.into()))?;
        separator = b",\n";
    }
    out.write_all(b"\n]}\n").and_then(|()| out.flush()).map_err(failed)?;
    Ok(count)
}

/// Returns a time in microseconds after `first`.
#[allow(clippy::cast_precision_loss, reason = "trace viewers store times as f64")]
fn microseconds_since(first: i64, ns: i64) -> f64 {
    ns.saturating_sub(first) as f64 / 1000.0
}

/// Returns a replacement rank for each process that has the same rank as an earlier process, for
/// example after a restart or in another job. The key is the file and the rank.
fn replacement_pids(index: &TraceIndex) -> HashMap<(u32, u64), u64> {
    let mut process_by_rank: HashMap<u64, (&str, u64)> = HashMap::new();
    let mut numbers = HashMap::new();
    let all: BTreeSet<u64> =
        index.sources.iter().flat_map(|source| &source.ranks).map(|&rank| rank as u64).collect();
    let mut next = all.last().map_or(0, |last| last + 1);
    for (i, source) in (0_u32..).zip(&index.sources) {
        let process = (source.clock.host.as_str(), source.clock.pid);
        for &rank in &source.ranks {
            let rank = rank as u64;
            if *process_by_rank.entry(rank).or_insert(process) != process {
                numbers.insert((i, rank), next);
                next += 1;
            }
        }
    }
    numbers
}

/// The trace files, with a bounded number of open files.
struct TraceFiles<'a> {
    index: &'a TraceIndex,
    open: HashMap<u32, File>,
}

impl TraceFiles<'_> {
    /// Reads an event from its file a second time. The index only contains its location.
    fn read_event(&mut self, entry: &EventLocation) -> Result<Value, String> {
        let path = &self.index.sources[entry.source as usize].path;
        let failed =
            |cause: &dyn std::fmt::Display| format!("cannot read {}: {cause}", path.display());
        if !self.open.contains_key(&entry.source) {
            if self.open.len() >= MAX_OPEN_FILES {
                self.open.clear();
            }
            let file = File::open(path).map_err(|cause| failed(&cause))?;
            self.open.insert(entry.source, file);
        }
        let mut bytes = vec![0; entry.len as usize];
        if let Some(file) = self.open.get(&entry.source) {
            file.read_exact_at(&mut bytes, entry.offset).map_err(|cause| failed(&cause))?;
        }
        // The event was a valid object when the index was built. If it is not valid now, the file
        // has changed.
        serde_json::from_slice(&bytes)
            .ok()
            .filter(Value::is_object)
            .ok_or_else(|| failed(&"the file changed during the merge"))
    }
}
