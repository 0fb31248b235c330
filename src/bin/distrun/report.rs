//! What is said about a job that failed: who was first, how it ended, what its error was and what
//! it wrote last, and what became of the others.

use crate::clock;
use crate::errors::Said;
use crate::lines::Tail;
use crate::streams::Stream;
use dist::process::crew::Member;
use dist::process::ending::{Ending, signal_name};
use dist::sys::host;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Instant;

const SIGKILL: i32 = 9;

/// How many lines of an error are shown, from its end, where a traceback has what matters.
const ERROR_LINES: usize = 30;

/// How many letters are shown of a line of it.
const LINE_LETTERS: usize = 1000;

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
    /// Where it writes its error.
    pub(crate) error_file: PathBuf,
}

/// A job whose ranks have ended.
#[derive(Debug)]
pub(crate) struct Ended<'a> {
    /// The ranks of this node.
    pub(crate) ranks: &'a [Rank],
    /// Their processes.
    pub(crate) members: &'a [Member],
    /// What their error files say.
    pub(crate) said: &'a [Option<Said>],
    /// When they were started.
    pub(crate) began: Instant,
}

impl Ended<'_> {
    /// Which rank's failure was the cause of all, where the one with index `first` was seen to fail
    /// first. A rank that fails because of another one says so, and may be seen to end before that
    /// one, whose death the kernel reports later than the end of its connections.
    pub(crate) fn root_cause(&self, first: usize) -> usize {
        let mut cause = first;
        for _ in 0..self.ranks.len() {
            match self.blamed(cause).filter(|&index| self.has_failed_alone(index)) {
                Some(index) if index != cause => cause = index,
                _ => break,
            }
        }
        cause
    }

    /// The index of the rank that a rank's error blames, if that is on this node.
    fn blamed(&self, index: usize) -> Option<usize> {
        let culprit = self.said.get(index)?.as_ref()?.culprit?;
        self.ranks.iter().position(|rank| rank.rank == culprit)
    }

    /// True for a rank that failed, and not because distrun had told it to end.
    fn has_failed_alone(&self, index: usize) -> bool {
        let Some(member) = self.members.get(index) else { return false };
        let Some(ending) = member.ending() else { return false };
        !ending.is_success() && (member.told().is_none() || ending.signal() != member.told())
    }

    /// `rank 1 failed with exit status 7`.
    pub(crate) fn in_short(&self, cause: usize) -> String {
        match (self.ranks.get(cause), self.members.get(cause)) {
            (Some(rank), Some(member)) => format!("rank {} failed with {}", rank.rank, how(member)),
            _ => "a rank failed".to_owned(),
        }
    }

    /// The report, where the rank with index `cause` is the cause of all.
    pub(crate) fn report(&self, cause: usize) -> String {
        let (Some(rank), Some(member)) = (self.ranks.get(cause), self.members.get(cause)) else {
            return String::new();
        };
        let mut text = String::new();
        let (after, at) = match member.ended_at() {
            Some(at) => {
                let after = at.duration_since(self.began).as_secs_f64();
                (format!(", {after:.3} s after the start"), format!(", ended {}", clock::utc(at)))
            }
            None => (String::new(), String::new()),
        };
        let number = rank.rank;
        push(
            &mut text,
            format_args!("distrun: rank {number} failed first: {}{after}", how(member)),
        );
        let (local_rank, pid, host) = (rank.local_rank, member.pid(), host::name());
        push(
            &mut text,
            format_args!("  it was local rank {local_rank}, process {pid} on host {host}{at}"),
        );
        if member.ending().and_then(Ending::signal) == Some(SIGKILL) {
            let by = "a user, a job manager, or the kernel out of memory";
            push(&mut text, format_args!("  SIGKILL comes from outside: {by}"));
        }
        self.push_error(&mut text, cause);
        if let Some(logs) = &rank.logs {
            push(&mut text, format_args!("  its logs are in {}", logs.display()));
        }
        for (stream, tail) in &rank.tails {
            last_lines(&mut text, *stream, tail);
        }
        self.push_others(&mut text, cause);
        text
    }

    fn push_error(&self, text: &mut String, cause: usize) {
        let Some(said) = self.said.get(cause).and_then(Option::as_ref) else { return };
        let lines: Vec<&str> = said.text.lines().collect();
        let skipped = lines.len().saturating_sub(ERROR_LINES);
        push(text, format_args!("  its error:"));
        for line in &lines[skipped..] {
            push(text, format_args!("    {}", cut(line.trim_end())));
        }
        let Some(culprit) = said.culprit else { return };
        let blamed = self.blamed(cause);
        let ending = blamed.and_then(|index| self.members.get(index)?.ending());
        let where_it_is = match blamed {
            Some(index) if index == cause => return,
            None => "is on another node: the distrun there says more",
            Some(index) if self.has_failed_alone(index) => "failed as well",
            Some(_) if ending.is_some_and(Ending::is_success) => "ended with status 0",
            Some(_) => "had not ended by itself",
        };
        push(text, format_args!("  it blames rank {culprit}, which {where_it_is}"));
    }

    fn push_others(&self, text: &mut String, cause: usize) {
        let moment = self.members.get(cause).and_then(Member::ended_at);
        let failed = |member: &Member| member.ending().is_none_or(|ending| !ending.is_success());
        let mut heading = Some("  other ranks:");
        for (index, (rank, member)) in self.ranks.iter().zip(self.members).enumerate() {
            if index == cause || !(failed(member) || member.told().is_some()) {
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
            let error = self.last_line_of_error(index);
            let (rank, how) = (rank.rank, how(member));
            push(text, format_args!("    rank {rank}: {how}{told}{later}{error}"));
        }
    }

    /// Names the ranks that a job has lost, one that has succeeded without them. Empty if there are
    /// none.
    pub(crate) fn lost(&self) -> String {
        let has_failed =
            |member: &Member| member.ending().is_some_and(|ending| !ending.is_success());
        let lost = self.members.iter().filter(|member| has_failed(member)).count();
        let mut text = String::new();
        if lost == 0 {
            return text;
        }
        let all = self.ranks.len();
        push(&mut text, format_args!("distrun: the job succeeded without {lost} of {all} ranks:"));
        for (index, (rank, member)) in self.ranks.iter().zip(self.members).enumerate() {
            if !has_failed(member) {
                continue;
            }
            let after = member.ended_at().map_or_else(String::new, |at| {
                format!(", {:.3} s after the start", at.duration_since(self.began).as_secs_f64())
            });
            let (rank, how, error) = (rank.rank, how(member), self.last_line_of_error(index));
            push(&mut text, format_args!("  rank {rank}: {how}{after}{error}"));
        }
        text
    }

    /// The last line of a rank's error, behind a colon. Of a traceback, that line is the error.
    fn last_line_of_error(&self, index: usize) -> String {
        let said = self.said.get(index).and_then(Option::as_ref);
        said.map_or_else(String::new, |said| {
            format!(": {}", cut(said.text.lines().last().unwrap_or_default()))
        })
    }

    /// Names the members that could not be killed.
    pub(crate) fn unkillable(&self) -> String {
        let mut text = String::new();
        let living = self.ranks.iter().zip(self.members).filter(|(_, m)| m.ending().is_none());
        for (rank, member) in living {
            let (rank, pid) = (rank.rank, member.pid());
            push(
                &mut text,
                format_args!(
                    "distrun: rank {rank}, process {pid}, is stuck in the kernel and remains"
                ),
            );
        }
        text
    }
}

fn push(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _nothing = writeln!(text, "{line}");
}

fn how(member: &Member) -> String {
    member.ending().map_or_else(|| "still running".to_owned(), |ending| ending.to_string())
}

fn cut(line: &str) -> &str {
    line.char_indices().nth(LINE_LETTERS).map_or(line, |(end, _)| &line[..end])
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
