//! `dist-doctor trace`: merges the traces of all ranks into one trace on a common clock.
//!
//! | file | content |
//! |---|---|
//! | [`trace_reader`] | reads the files, one event per line, and keeps an index in memory |
//! | [`clock_alignment`] | estimates clock differences from operations that all ranks were in |
//! | [`merged_trace`] | writes the merged file, ordered by time |
//!
//! The memory is limited: an event takes 24 bytes, and there are at most
//! [`trace_reader::MAX_EVENTS`] events.

mod clock_alignment;
mod merged_trace;
#[cfg(test)]
mod tests;
mod trace_reader;

use crate::text::ranks_text as list_ranks;
use crate::{CommandResult, input_files, report_error, write_output};
use clap::Args;
use clock_alignment::{ClockAlignment, ClockSource, HostClock};
use dist_terminal::Progress;
use dist_tools::Failure;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;
use trace_reader::{TraceIndex, TraceSource};

/// `dist-doctor trace`.
#[derive(Debug, Args)]
pub(crate) struct TraceOptions {
    /// Traces, folders with traces, or the common prefix of the names of all traces
    #[arg(value_name = "FILE|FOLDER|PREFIX", required = true)]
    pub(crate) inputs: Vec<OsString>,

    /// The output file, for Perfetto (ui.perfetto.dev) or chrome://tracing
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: OsString,

    /// Print the accuracy of the times as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Merges the traces, writes the output file, and prints how accurately the clocks were aligned.
/// Returns the exit status 0.
///
/// # Errors
/// The message if an input has no matching file, if a file that the user named is not a trace, or
/// if the output cannot be written.
pub(crate) fn main(options: &TraceOptions) -> CommandResult {
    let output = Path::new(&options.output);
    let mut index = TraceIndex::default();
    let mut paths = BTreeSet::new();
    let mut progress = Progress::of_wait("");
    for input in &options.inputs {
        let is_named = Path::new(input).is_file();
        for path in input_files::matching_files(input).map_err(Failure::usage)? {
            if path != output && paths.insert(path.clone()) {
                progress.set_text(format!("reading {}", path.display()));
                match index.read_file(&path) {
                    Ok(()) => {}
                    // A folder or a prefix may include files that are not traces. Skip them.
                    Err(error) if !is_named && error.is_not_a_trace => {}
                    Err(error) => {
                        let message = format!("{}: {}", path.display(), error.message);
                        return Err(Failure::usage(message));
                    }
                }
            }
        }
    }
    if index.sources.is_empty() {
        let message = "no trace among these files: a rank writes a trace if DIST_TRACE_FILE=PREFIX is set or \
                       the program calls dist_trace_start";
        return Err(Failure::usage(message));
    }
    progress.set_text(format!("writing {}", output.display()));
    let alignment = clock_alignment::align_clocks(&index.sources);
    let events = merged_trace::write_merged(&index, &alignment, output)
        .map_err(|error| Failure::usage(format!("{}: {error}", output.display())))?;
    progress.finish();
    for source in &index.sources {
        warn_about_source(source);
    }
    write_output(&match options.json {
        true => format!("{:#}\n", merge_json(&index, &alignment, events, output)),
        false => merge_report(&index, &alignment, events, output),
    })?;
    Ok(0)
}

fn warn_about_source(source: &TraceSource) {
    let path = source.path.display();
    if !source.is_complete {
        report_error(&format!("{path} has no end: its process was killed or is still writing it"));
    }
    if source.dropped_records > 0 {
        report_error(&format!(
            "{path} lacks {} records, which did not fit into the trace buffer",
            source.dropped_records
        ));
    }
}

/// Describes the merged file and the accuracy of its times.
fn merge_report(
    index: &TraceIndex,
    alignment: &ClockAlignment,
    events: u64,
    output: &Path,
) -> String {
    let files = index.sources.len();
    let mut text = format!("{events} events of {files} files are in {}\n", output.display());
    for host in &alignment.hosts {
        let (ranks, name) = host_ranks(index, host);
        let host_description =
            format!("{} on {}", list_ranks(&ranks), crate::text::printable_line(name, 80));
        let clock = match host.source {
            ClockSource::Reference => "the reference clock".to_owned(),
            ClockSource::CommonOperations { count, max_error_ns } => format!(
                "shifted by {}, error at most {} ({count} common operations)",
                ms_text(host.offset_ns),
                ms_text(max_error_ns).trim_start_matches('+')
            ),
            ClockSource::WallClock => format!(
                "shifted by {} to match the wall clocks, with their unknown error: there is no common operation",
                ms_text(host.offset_ns)
            ),
        };
        text += &format!("{host_description}: {clock}\n");
    }
    text
}

/// Returns the ranks and the name of a host.
fn host_ranks<'a>(index: &'a TraceIndex, host: &HostClock) -> (Vec<usize>, &'a str) {
    let of_host = |source: &&TraceSource| source.clock.domain == host.domain;
    let sources = || index.sources.iter().filter(of_host);
    let ranks: BTreeSet<usize> =
        sources().flat_map(|source| source.ranks.iter().copied()).collect();
    let name = sources().next().map_or("", |source| source.clock.host.as_str());
    (ranks.into_iter().collect(), name)
}

/// Describes the merged file for programs. `max_error_ns` is null for the reference clock, and if
/// the error is unknown.
fn merge_json(index: &TraceIndex, alignment: &ClockAlignment, events: u64, output: &Path) -> Value {
    let host_json = |host: &HostClock| {
        let (ranks, name) = host_ranks(index, host);
        let (source, max_error_ns) = match host.source {
            ClockSource::Reference => ("reference", None),
            ClockSource::CommonOperations { max_error_ns, .. } => {
                ("common operations", Some(max_error_ns))
            }
            ClockSource::WallClock => ("wall clock", None),
        };
        json!({
            "host": name, "ranks": ranks, "offset_ns": host.offset_ns, "source": source,
            "max_error_ns": max_error_ns,
        })
    };
    json!({
        "output": output.display().to_string(),
        "events": events,
        "files": index.sources.len(),
        "hosts": alignment.hosts.iter().map(host_json).collect::<Vec<_>>(),
    })
}

/// Formats a time, for example "+1.250 ms".
#[allow(clippy::cast_precision_loss, reason = "the output has only three decimals")]
fn ms_text(ns: i64) -> String {
    format!("{:+.3} ms", ns as f64 / 1e6)
}
