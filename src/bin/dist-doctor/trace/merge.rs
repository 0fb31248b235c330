//! The one file: every event of every trace, in the order of time on the common clock, which begins
//! at 0.
//!
//! It is written under another name first, so that what has the name that was asked for is whole.

use super::clocks::Alignment;
use super::read::{Entry, Index, TIMELESS};
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// How many traces are open at once.
const MOST_OPEN: usize = 256;

/// Writes the merged trace; how many events are in it, names left aside.
///
/// # Errors
/// What failed, with the file where that is not the output.
pub(crate) fn write(index: &Index, alignment: &Alignment, output: &Path) -> Result<u64, String> {
    let mut order: Vec<Entry> = index.entries.clone();
    for entry in order.iter_mut().filter(|entry| entry.ns != TIMELESS) {
        let source = &index.sources[entry.source as usize];
        entry.ns = alignment.correct(&source.clock.domain, entry.ns);
    }
    order.sort_by_key(|entry| (entry.ns, entry.source, entry.at));
    let mut partly = output.as_os_str().to_owned();
    partly.push(".part");
    let partly = PathBuf::from(partly);
    let written = File::create(&partly)
        .map_err(|cause| cause.to_string())
        .and_then(|file| write_events(index, &order, BufWriter::with_capacity(1 << 16, file)))
        .and_then(|count| {
            fs::rename(&partly, output).map(|()| count).map_err(|cause| cause.to_string())
        });
    if written.is_err() {
        // Nothing is left of a file that is not whole.
        drop(fs::remove_file(&partly));
    }
    written
}

fn write_events(index: &Index, order: &[Entry], mut out: impl Write) -> Result<u64, String> {
    let failed = |cause: io::Error| cause.to_string();
    let first = order.iter().map(|entry| entry.ns).find(|&ns| ns != TIMELESS).unwrap_or(0);
    let pids = numbers(index);
    let mut files = Files { index, open: HashMap::new() };
    out.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[").map_err(failed)?;
    let mut separator: &[u8] = b"\n";
    let mut count = 0;
    for entry in order {
        let mut event = files.event(entry)?;
        let rank = event["pid"].as_u64().unwrap_or(0);
        if let Some(pid) = pids.get(&(entry.source, rank)) {
            event["pid"] = json!(pid);
        }
        if entry.ns != TIMELESS {
            event["ts"] = json!(since(first, entry.ns));
            count += 1;
        }
        out.write_all(separator).map_err(failed)?;
        serde_json::to_writer(&mut out, &event).map_err(|cause| failed(cause.into()))?;
        separator = b",\n";
    }
    out.write_all(b"\n]}\n").and_then(|()| out.flush()).map_err(failed)?;
    Ok(count)
}

/// Microseconds.
#[allow(clippy::cast_precision_loss, reason = "a viewer's times are doubles")]
fn since(first: i64, ns: i64) -> f64 {
    ns.saturating_sub(first) as f64 / 1000.0
}

/// Where two processes were the same rank, one after the other or in different jobs: the number
/// that the later one gets, by its file and its rank.
fn numbers(index: &Index) -> HashMap<(u32, u64), u64> {
    let mut taken: HashMap<u64, (&str, u64)> = HashMap::new();
    let mut numbers = HashMap::new();
    let all: BTreeSet<u64> =
        index.sources.iter().flat_map(|source| &source.ranks).map(|&rank| rank as u64).collect();
    let mut next = all.last().map_or(0, |last| last + 1);
    for (i, source) in (0_u32..).zip(&index.sources) {
        let process = (source.clock.host.as_str(), source.clock.pid);
        for &rank in &source.ranks {
            let rank = rank as u64;
            if *taken.entry(rank).or_insert(process) != process {
                numbers.insert((i, rank), next);
                next += 1;
            }
        }
    }
    numbers
}

/// The traces, of which some are open.
struct Files<'a> {
    index: &'a Index,
    open: HashMap<u32, File>,
}

impl Files<'_> {
    /// Reads an event again.
    fn event(&mut self, entry: &Entry) -> Result<Value, String> {
        let path = &self.index.sources[entry.source as usize].path;
        let failed = |cause: &dyn std::fmt::Display| format!("reading {}: {cause}", path.display());
        if !self.open.contains_key(&entry.source) {
            if self.open.len() >= MOST_OPEN {
                self.open.clear();
            }
            let file = File::open(path).map_err(|cause| failed(&cause))?;
            self.open.insert(entry.source, file);
        }
        let mut bytes = vec![0; entry.len as usize];
        if let Some(file) = self.open.get(&entry.source) {
            file.read_exact_at(&mut bytes, entry.at).map_err(|cause| failed(&cause))?;
        }
        // It was an object when it was read first.
        serde_json::from_slice(&bytes)
            .ok()
            .filter(Value::is_object)
            .ok_or_else(|| failed(&"it has changed meanwhile"))
    }
}
