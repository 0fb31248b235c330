//! The report of a failed job: the rank that failed first, its exit status, its error and its last
//! output, and the exits of the other ranks.

use crate::error_files::RankError;
use crate::line_splitter::OutputTail;
use crate::streams::OutputStream;
use dist::process::child_group::ChildProcess;
use dist::process::process_exit::{ProcessExit, signal_name};
use dist::sys::host;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

const SIGKILL: i32 = 9;

/// The report shows this number of lines from the end of an error. In a traceback, the error itself
/// is at the end.
const ERROR_LINES: usize = 30;

/// A longer line is shortened to this number of characters.
const MAX_LINE_CHARS: usize = 1000;

/// The information about a rank that its [`ChildProcess`] does not contain.
#[derive(Debug)]
pub(crate) struct RankInfo {
    /// The number of the rank in the job.
    pub(crate) rank: usize,
    /// The number of the rank on this node.
    pub(crate) local_rank: usize,
    /// The last lines on standard output and standard error.
    pub(crate) tails: [(OutputStream, OutputTail); 2],
    /// The folder of the rank's logs, if any.
    pub(crate) log_folder: Option<PathBuf>,
    /// The path of the rank's error file.
    pub(crate) error_file: PathBuf,
}

/// A job whose ranks have exited.
#[derive(Debug)]
pub(crate) struct FinishedJob<'a> {
    /// The ranks of this node.
    pub(crate) ranks: &'a [RankInfo],
    /// The processes of the ranks, in the same order.
    pub(crate) members: &'a [ChildProcess],
    /// The contents of the ranks' error files.
    pub(crate) rank_errors: &'a [Option<RankError>],
    /// The start time of the ranks.
    pub(crate) started_at: Instant,
}

impl FinishedJob<'_> {
    /// Returns the index of the rank whose failure is the root cause. `first` is the index of the
    /// rank whose exit was observed first. If rank A fails because rank B died, A names B in its
    /// error. A may exit before the death of B is observed: when a process dies, the kernel first
    /// closes its connections, and reports the death later. So this function follows the names in
    /// the errors, from rank to rank.
    pub(crate) fn root_cause(&self, first: usize) -> usize {
        let mut cause = first;
        for _ in 0..self.ranks.len() {
            match self.blamed_rank(cause).filter(|&index| self.has_failed_independently(index)) {
                Some(index) if index != cause => cause = index,
                _ => break,
            }
        }
        cause
    }

    /// Returns the index of the rank that a rank's error names as the cause, if it is on this node.
    fn blamed_rank(&self, index: usize) -> Option<usize> {
        let culprit = self.rank_errors.get(index)?.as_ref()?.culprit?;
        self.ranks.iter().position(|rank| rank.rank == culprit)
    }

    /// Returns true if a rank failed by itself. Returns false if it succeeded, or if a signal of
    /// distrun ended it.
    fn has_failed_independently(&self, index: usize) -> bool {
        let Some(member) = self.members.get(index) else { return false };
        let Some(ending) = member.exit() else { return false };
        !ending.is_success()
            && (member.last_signal().is_none() || ending.signal() != member.last_signal())
    }

    /// Returns a summary such as `rank 1 failed with exit status 7`.
    pub(crate) fn summary(&self, cause: usize) -> String {
        match (self.ranks.get(cause), self.members.get(cause)) {
            (Some(rank), Some(member)) => {
                format!("rank {} failed with {}", rank.rank, describe_ending(member))
            }
            _ => "a rank failed".to_owned(),
        }
    }

    /// Returns the report in which the rank with index `cause` is the root cause.
    pub(crate) fn report(&self, cause: usize) -> String {
        let (Some(rank), Some(member)) = (self.ranks.get(cause), self.members.get(cause)) else {
            return String::new();
        };
        let mut text = String::new();
        let (after, at) = match member.ended_at() {
            Some(at) => {
                let after = at.duration_since(self.started_at).as_secs_f64();
                (format!(", {after:.3} s after the start"), format!(", ended {}", format_utc(at)))
            }
            None => (String::new(), String::new()),
        };
        let number = rank.rank;
        push_line(
            &mut text,
            format_args!("distrun: rank {number} failed first: {}{after}", describe_ending(member)),
        );
        let (local_rank, pid, host) = (rank.local_rank, member.pid(), host::name());
        push_line(
            &mut text,
            format_args!("  it was local rank {local_rank}, process {pid} on host {host}{at}"),
        );
        if member.exit().and_then(ProcessExit::signal) == Some(SIGKILL) {
            let likely_senders = "a user, a job manager, or the kernel's out-of-memory killer";
            push_line(&mut text, format_args!("  likely senders of SIGKILL: {likely_senders}"));
        }
        self.push_error(&mut text, cause);
        if let Some(logs) = &rank.log_folder {
            push_line(&mut text, format_args!("  its logs are in {}", logs.display()));
        }
        for (stream, tail) in &rank.tails {
            push_last_lines(&mut text, *stream, tail);
        }
        self.push_others(&mut text, cause);
        text
    }

    fn push_error(&self, text: &mut String, cause: usize) {
        let Some(error) = self.rank_errors.get(cause).and_then(Option::as_ref) else { return };
        let lines: Vec<&str> = error.text.lines().collect();
        let skipped = lines.len().saturating_sub(ERROR_LINES);
        push_line(text, format_args!("  its error:"));
        for line in &lines[skipped..] {
            push_line(text, format_args!("    {}", truncate_line(line.trim_end())));
        }
        let Some(culprit) = error.culprit else { return };
        let blamed_index = self.blamed_rank(cause);
        let ending = blamed_index.and_then(|index| self.members.get(index)?.exit());
        let state = match blamed_index {
            Some(index) if index == cause => return,
            None => "is on another node: see the report of distrun there",
            Some(index) if self.has_failed_independently(index) => "failed as well",
            Some(_) if ending.is_some_and(ProcessExit::is_success) => "exited with status 0",
            Some(_) => "had not exited by itself",
        };
        push_line(text, format_args!("  it names rank {culprit} as the cause; that rank {state}"));
    }

    fn push_others(&self, text: &mut String, cause: usize) {
        let moment = self.members.get(cause).and_then(ChildProcess::ended_at);
        let failed =
            |member: &ChildProcess| member.exit().is_none_or(|ending| !ending.is_success());
        let mut heading = Some("  other ranks:");
        for (index, (rank, member)) in self.ranks.iter().zip(self.members).enumerate() {
            if index == cause || !(failed(member) || member.last_signal().is_some()) {
                continue;
            }
            if let Some(heading) = heading.take() {
                push_line(text, format_args!("{heading}"));
            }
            let delay = match (moment, member.ended_at()) {
                (Some(first), Some(own)) => {
                    format!(", {} ms later", own.saturating_duration_since(first).as_millis())
                }
                _ => String::new(),
            };
            let signal_sent = match member.last_signal() {
                Some(signal) => format!(" after {} from distrun", signal_name(signal)),
                None => String::new(),
            };
            let error = self.last_line_of_error(index);
            let (rank, how) = (rank.rank, describe_ending(member));
            push_line(text, format_args!("    rank {rank}: {how}{signal_sent}{delay}{error}"));
        }
    }

    /// Names the failed ranks of a job that succeeded without them. Returns an empty text if no
    /// rank failed.
    pub(crate) fn lost_ranks_report(&self) -> String {
        let has_failed =
            |member: &ChildProcess| member.exit().is_some_and(|ending| !ending.is_success());
        let lost = self.members.iter().filter(|member| has_failed(member)).count();
        let mut text = String::new();
        if lost == 0 {
            return text;
        }
        let all = self.ranks.len();
        push_line(
            &mut text,
            format_args!("distrun: the job succeeded without {lost} of {all} ranks:"),
        );
        for (index, (rank, member)) in self.ranks.iter().zip(self.members).enumerate() {
            if !has_failed(member) {
                continue;
            }
            let after = member.ended_at().map_or_else(String::new, |at| {
                format!(
                    ", {:.3} s after the start",
                    at.duration_since(self.started_at).as_secs_f64()
                )
            });
            let (rank, how, error) =
                (rank.rank, describe_ending(member), self.last_line_of_error(index));
            push_line(&mut text, format_args!("  rank {rank}: {how}{after}{error}"));
        }
        text
    }

    /// Returns ": " and the last line of a rank's error. In a traceback, the last line is the error
    /// itself.
    fn last_line_of_error(&self, index: usize) -> String {
        let error = self.rank_errors.get(index).and_then(Option::as_ref);
        error.map_or_else(String::new, |error| {
            format!(": {}", truncate_line(error.text.lines().last().unwrap_or_default()))
        })
    }

    /// Names the ranks that could not be killed.
    pub(crate) fn unkillable_ranks_report(&self) -> String {
        let mut text = String::new();
        let running = self.ranks.iter().zip(self.members).filter(|(_, m)| m.exit().is_none());
        for (rank, member) in running {
            let (rank, pid) = (rank.rank, member.pid());
            push_line(
                &mut text,
                format_args!(
                    "distrun: rank {rank}, process {pid}, cannot be killed: it is blocked in the kernel"
                ),
            );
        }
        text
    }
}

fn push_line(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _nothing = writeln!(text, "{line}");
}

fn describe_ending(member: &ChildProcess) -> String {
    member.exit().map_or_else(|| "still running".to_owned(), |ending| ending.to_string())
}

fn truncate_line(line: &str) -> &str {
    line.char_indices().nth(MAX_LINE_CHARS).map_or(line, |(end, _)| &line[..end])
}

fn push_last_lines(text: &mut String, stream: OutputStream, tail: &OutputTail) {
    let lines = tail.lines();
    if lines.is_empty() {
        return;
    }
    push_line(text, format_args!("  its last lines on {}:", stream.name()));
    for line in lines {
        push_line(text, format_args!("    {}", line.trim_end()));
    }
}

/// Formats a moment as a time of day, for example `2026-11-22 07:40:01.123 UTC`.
fn format_utc(moment: Instant) -> String {
    let now = SystemTime::now();
    let then = now.checked_sub(moment.elapsed()).unwrap_or(now);
    let since = then.duration_since(UNIX_EPOCH).unwrap_or_default();
    format_seconds(since.as_secs(), since.subsec_millis())
}

fn format_seconds(seconds: u64, millis: u32) -> String {
    let (year, month, day) = date_of_day(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{millis:03} UTC")
}

/// Returns the date of a day that is counted from 1970.
fn date_of_day(mut days: u64) -> (u64, usize, u64) {
    let mut year = 1970;
    loop {
        let length = if is_leap(year) { 366 } else { 365 };
        if days < length {
            break;
        }
        days -= length;
        year += 1;
    }
    let february = if is_leap(year) { 29 } else { 28 };
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    (year, month, days + 1)
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(format_seconds(0, 0), "1970-01-01 00:00:00.000 UTC");
        assert_eq!(format_seconds(951_782_399, 7), "2000-02-28 23:59:59.007 UTC");
        assert_eq!(format_seconds(951_868_799, 999), "2000-02-29 23:59:59.999 UTC");
        assert_eq!(format_seconds(1_735_689_599, 1), "2024-12-31 23:59:59.001 UTC");
        assert_eq!(format_seconds(1_735_689_600, 0), "2025-01-01 00:00:00.000 UTC");
    }
}
