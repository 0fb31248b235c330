//! What is said about a job that failed: who was first, how it ended, what it wrote last, and what
//! became of the others.

use crate::lines::Tail;
use crate::streams::Stream;
use dist::process::crew::Member;
use dist::process::ending::{Ending, signal_name};
use dist::sys::host;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Instant;

const SIGKILL: i32 = 9;

/// What is known of a rank besides its process.
#[derive(Debug)]
pub(crate) struct Rank {
    /// Its number in the job.
    pub(crate) rank: usize,
    /// Its number on this node.
    pub(crate) local_rank: usize,
    /// Its last lines on standard output and standard error.
    pub(crate) tails: [(Stream, Tail); 2],
    /// The folder of its logs, if it has any.
    pub(crate) logs: Option<PathBuf>,
}

/// The report on a job in which the rank with index `first` failed first.
pub(crate) fn failure(ranks: &[Rank], members: &[Member], first: usize, began: Instant) -> String {
    let (Some(rank), Some(member)) = (ranks.get(first), members.get(first)) else {
        return String::new();
    };
    let mut text = String::new();
    let after = match member.ended_at() {
        Some(at) => format!(", {:.3} s after the start", at.duration_since(began).as_secs_f64()),
        None => String::new(),
    };
    push(
        &mut text,
        format_args!("distrun: rank {} failed first: {}{after}", rank.rank, how(member)),
    );
    push(
        &mut text,
        format_args!(
            "  it was local rank {}, process {} on host {}",
            rank.local_rank,
            member.pid(),
            host::name()
        ),
    );
    if member.ending().and_then(Ending::signal) == Some(SIGKILL) {
        let by = "a user, a job manager, or the kernel out of memory";
        push(&mut text, format_args!("  SIGKILL comes from outside: {by}"));
    }
    if let Some(logs) = &rank.logs {
        push(&mut text, format_args!("  its logs are in {}", logs.display()));
    }
    for (stream, tail) in &rank.tails {
        last_lines(&mut text, *stream, tail);
    }
    others(&mut text, ranks, members, first);
    text
}

/// Names the members that could not be killed.
pub(crate) fn unkillable(ranks: &[Rank], members: &[Member]) -> String {
    let mut text = String::new();
    for (rank, member) in ranks.iter().zip(members).filter(|(_, m)| m.ending().is_none()) {
        let (rank, pid) = (rank.rank, member.pid());
        push(
            &mut text,
            format_args!("distrun: rank {rank}, process {pid}, is stuck in the kernel and remains"),
        );
    }
    text
}

fn push(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _nothing = writeln!(text, "{line}");
}

fn how(member: &Member) -> String {
    member.ending().map_or_else(|| "still running".to_owned(), |ending| ending.to_string())
}

fn last_lines(text: &mut String, stream: Stream, tail: &Tail) {
    let lines = tail.lines();
    if lines.is_empty() {
        return;
    }
    push(text, format_args!("  its last lines on {}:", stream.name()));
    for line in lines {
        push(text, format_args!("    {}", line.trim_end()));
    }
}

fn others(text: &mut String, ranks: &[Rank], members: &[Member], first: usize) {
    let moment = members.get(first).and_then(Member::ended_at);
    let failed = |member: &Member| member.ending().is_none_or(|ending| !ending.is_success());
    let mut heading = Some("  other ranks:");
    for (index, (rank, member)) in ranks.iter().zip(members).enumerate() {
        if index == first || !(failed(member) || member.told().is_some()) {
            continue;
        }
        if let Some(heading) = heading.take() {
            push(text, format_args!("{heading}"));
        }
        let later = match (moment, member.ended_at()) {
            (Some(first), Some(own)) => {
                format!(", {} ms later", own.saturating_duration_since(first).as_millis())
            }
            _ => String::new(),
        };
        let told = match member.told() {
            Some(signal) => format!(" after {} from distrun", signal_name(signal)),
            None => String::new(),
        };
        push(text, format_args!("    rank {}: {}{told}{later}", rank.rank, how(member)));
    }
}
