//! `dist-doctor trace`: makes one trace of those of all ranks, on a common clock.
//!
//! | file | what it is |
//! |---|---|
//! | [`read`] | the files, one event a line, and what of them is kept in memory |
//! | [`clocks`] | how the clocks of hosts differ, from operations that all ranks were in |
//! | [`merge`] | the one file, in the order of time |
//!
//! What is kept in memory is bounded: two dozen bytes for an event, and no more events than
//! [`read::MOST_EVENTS`].

mod clocks;
mod merge;
mod read;
#[cfg(test)]
mod tests;

use crate::text::ranks as list_ranks;
use crate::{Failure, Outcome, complain, files, say};
use clap::Args;
use clocks::{Alignment, Found};
use read::{Index, Source};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;

/// `dist-doctor trace`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Traces, folders of traces, or what the names of all traces begin with
    #[arg(value_name = "FILE|FOLDER|PREFIX", required = true)]
    pub(crate) places: Vec<OsString>,

    /// The file to make; Perfetto (ui.perfetto.dev) and chrome://tracing open it
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: OsString,
}

/// Merges, and says how well the clocks are known. The status is 0 where a file was made.
///
/// # Errors
/// Places that mean nothing, a file that was named and is no trace, an output that cannot be
/// written.
pub(crate) fn main(options: &Options) -> Outcome {
    let output = Path::new(&options.output);
    let mut index = Index::default();
    let mut paths = BTreeSet::new();
    for place in &options.places {
        let is_named = Path::new(place).is_file();
        for path in files::files_of(place).map_err(Failure::unusable)? {
            if path != output && paths.insert(path.clone()) {
                match index.read(&path) {
                    Ok(()) => {}
                    // A folder may have other files beside.
                    Err(why) if !is_named && why.is_foreign => {}
                    Err(why) => {
                        let message = format!("{}: {}", path.display(), why.message);
                        return Err(Failure::unusable(message));
                    }
                }
            }
        }
    }
    if index.sources.is_empty() {
        let message = "there is no trace among these files: ranks write them where DIST_TRACE_FILE=PREFIX is set, or the \
                       program calls dist_trace_start";
        return Err(Failure::unusable(message));
    }
    let alignment = clocks::align(&index.sources);
    let events = merge::write(&index, &alignment, output)
        .map_err(|why| Failure::unusable(format!("{}: {why}", output.display())))?;
    for source in &index.sources {
        warn(source);
    }
    say(&report(&index, &alignment, events, output))?;
    Ok(0)
}

fn warn(source: &Source) {
    let path = source.path.display();
    if !source.is_whole {
        complain(&format!("{path} has no end: its process was killed, or writes it still"));
    }
    if source.lost > 0 {
        complain(&format!("{path} lacks {} records, for which there was no room", source.lost));
    }
}

/// What was made, and how far it is to be trusted.
fn report(index: &Index, alignment: &Alignment, events: u64, output: &Path) -> String {
    let files = index.sources.len();
    let mut text = format!("{events} events of {files} files are in {}\n", output.display());
    for host in &alignment.hosts {
        let of_host = |source: &&Source| source.clock.domain == host.domain;
        let sources = || index.sources.iter().filter(of_host);
        let ranks: BTreeSet<usize> =
            sources().flat_map(|source| source.ranks.iter().copied()).collect();
        let ranks: Vec<usize> = ranks.into_iter().collect();
        let name = sources().next().map_or("", |source| source.clock.host.as_str());
        let who = format!("{} on {}", list_ranks(&ranks), crate::text::line(name, 80));
        let clock = match host.found {
            Found::Reference => "the clock that the others are set to".to_owned(),
            Found::Operations { count, off_ns } => format!(
                "set by {}, at most {} wrong ({count} common operations)",
                in_ms(host.offset_ns),
                in_ms(off_ns).trim_start_matches('+')
            ),
            Found::Wall => format!(
                "set by {} after the clocks on the walls, as far as these agree: there is no operation in common",
                in_ms(host.offset_ns)
            ),
        };
        text += &format!("{who}: {clock}\n");
    }
    text
}

/// For instance "+1.250 ms".
#[allow(clippy::cast_precision_loss, reason = "for people")]
fn in_ms(ns: i64) -> String {
    format!("{:+.3} ms", ns as f64 / 1e6)
}
