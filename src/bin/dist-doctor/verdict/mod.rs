//! The verdict on a job, from the dumps of its ranks alone.
//!
//! | file | what it finds |
//! |---|---|
//! | `mismatch` | ranks that called something else under the same number |
//! | `failure` | what a group itself says that it failed of |
//! | `waiting` | who is behind: who waits for whom, followed to those who wait for nobody |
//! | `slow` | ranks for which the others waited again and again |
//! | `report` | all of it, for people and for programs |

mod failure;
mod mismatch;
mod report;
mod slow;
#[cfg(test)]
mod tests;
mod waiting;

use crate::cli::Verdict;
use crate::job::Job;
use crate::{Outcome, files, say};

/// Something that is wrong.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    class: Class,
    /// Which of the job's groups.
    group: usize,
    /// In one line.
    text: String,
    /// The ranks of the group that are to blame.
    culprits: Vec<usize>,
    /// When it began, on the clock on the wall: of two, the earlier may be the cause of the other.
    since: u64,
}

/// What kind of thing is wrong; of two that began together the first one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    Mismatch,
    Failure,
    Deadlock,
    Behind,
    Silent,
    Stalled,
    Slow,
}

impl Class {
    fn name(self) -> &'static str {
        match self {
            Self::Mismatch => "mismatch",
            Self::Failure => "failure",
            Self::Deadlock => "deadlock",
            Self::Behind => "behind",
            Self::Silent => "silent",
            Self::Stalled => "stalled",
            Self::Slow => "slow",
        }
    }
}

/// A culprit was found.
const SOMETHING: u8 = 1;

/// Reads the dumps, and tells what is wrong.
pub(crate) fn main(options: &Verdict) -> Outcome {
    let found = files::read(&options.places)?;
    let mut job = Job::of(found.dumps);
    job.notes.extend(found.unusable.iter().map(|why| format!("{why}; it is passed over")));
    let findings = diagnose(&job);
    let text = if options.json {
        format!("{:#}\n", report::json(&job, &findings))
    } else {
        report::text(&job, &findings)
    };
    say(&text)?;
    Ok(if findings.is_empty() { 0 } else { SOMETHING })
}

/// What is wrong with a job, the most likely cause first.
fn diagnose(job: &Job) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut explained = vec![false; job.groups.len()];
    for (number, explained) in explained.iter_mut().enumerate() {
        let found = mismatch::find(job, number).or_else(|| failure::unless_late(job, number));
        *explained = found.is_some();
        findings.extend(found);
    }
    let waiting = waiting::find(job, &explained);
    for finding in &waiting {
        explained[finding.group] = true;
    }
    findings.extend(waiting);
    for (number, explained) in explained.iter().enumerate() {
        if !explained {
            findings.extend(failure::any(job, number).or_else(|| slow::find(job, number)));
        }
    }
    // What is slow may have been so from the beginning, and hurts less than anything else.
    findings.sort_by_key(|finding| (finding.class == Class::Slow, finding.since, finding.class));
    findings
}
