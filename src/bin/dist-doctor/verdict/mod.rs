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

use crate::cli::VerdictOptions;
use crate::job::JobDumps;
use crate::{CommandResult, input_files, write_output};

/// Something that is wrong.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    class: FindingClass,
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
enum FindingClass {
    Mismatch,
    Failure,
    Deadlock,
    Behind,
    Silent,
    Stalled,
    Slow,
}

impl FindingClass {
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
const EXIT_CULPRIT_FOUND: u8 = 1;

/// Reads the dumps, and tells what is wrong.
pub(crate) fn main(options: &VerdictOptions) -> CommandResult {
    let loaded = input_files::read_dumps(&options.places)?;
    let mut job = JobDumps::from_dumps(loaded.dumps);
    job.remarks.extend(loaded.skipped_files.iter().map(|why| format!("{why}; it is passed over")));
    let findings = diagnose(&job);
    let text = if options.json {
        format!("{:#}\n", report::report_json(&job, &findings))
    } else {
        report::report_text(&job, &findings)
    };
    write_output(&text)?;
    Ok(if findings.is_empty() { 0 } else { EXIT_CULPRIT_FOUND })
}

/// What is wrong with a job, the most likely cause first.
fn diagnose(job: &JobDumps) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut explained = vec![false; job.groups.len()];
    for (number, explained) in explained.iter_mut().enumerate() {
        let finding = mismatch::find_mismatch(job, number)
            .or_else(|| failure::find_except_timeout(job, number));
        *explained = finding.is_some();
        findings.extend(finding);
    }
    let waiting = waiting::find_wait_causes(job, &explained);
    for finding in &waiting {
        explained[finding.group] = true;
    }
    findings.extend(waiting);
    for (number, explained) in explained.iter().enumerate() {
        if !explained {
            findings.extend(
                failure::find_any(job, number).or_else(|| slow::find_straggler(job, number)),
            );
        }
    }
    // What is slow may have been so from the beginning, and hurts less than anything else.
    findings
        .sort_by_key(|finding| (finding.class == FindingClass::Slow, finding.since, finding.class));
    findings
}
