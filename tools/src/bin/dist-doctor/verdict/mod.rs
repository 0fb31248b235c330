//! The verdict: which ranks of a job caused a fault, according to the dumps of all ranks.
//!
//! | file | findings |
//! |---|---|
//! | `mismatch` | different calls under one sequence number |
//! | `failure` | failures that a group itself reports |
//! | `waiting` | ranks that are behind: the graph of waits, followed to ranks that do not wait |
//! | `slow` | ranks that the other ranks waited for repeatedly |
//! | `report` | the reports for users and for programs |
//! | `html_page` | the report as a page for a browser |

mod failure;
mod html_page;
mod mismatch;
mod report;
mod slow;
#[cfg(test)]
mod tests;
mod waiting;

use crate::cli::VerdictOptions;
use crate::job::JobDumps;
use crate::{CommandResult, input_files, running, write_output};
use dist_tools::Failure;

/// A detected fault.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    class: FindingClass,
    /// The index of the group in the job.
    group: usize,
    /// A description in one line.
    text: String,
    /// The culprits, as ranks of the group.
    culprits: Vec<usize>,
    /// The start of the fault on the wall clock. Findings are sorted by it, because an earlier
    /// fault may be the cause of a later fault.
    since: u64,
}

/// The class of a finding. Among findings with the same start, the first class has priority.
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

/// The exit status if a culprit was found.
const EXIT_CULPRIT_FOUND: u8 = 1;

/// Reads the dumps and prints the verdict.
pub(crate) fn main(options: &VerdictOptions) -> CommandResult {
    let loaded = if options.pids.is_empty() {
        input_files::read_dumps(&options.inputs)?
    } else {
        running::request_dumps(&options.pids)?
    };
    let mut job = JobDumps::from_dumps(loaded.dumps);
    job.remarks.extend(loaded.notes);
    let findings = diagnose(&job);
    if let Some(path) = &options.html {
        std::fs::write(path, html_page::page(&job, &findings))
            .map_err(|cause| Failure::usage(format!("{}: {cause}", path.display())))?;
    }
    let text = if options.json {
        format!("{:#}\n", report::report_json(&job, &findings))
    } else {
        report::report_text(&job, &findings)
    };
    write_output(&text)?;
    Ok(if findings.is_empty() { 0 } else { EXIT_CULPRIT_FOUND })
}

/// Returns all findings of a job, the most likely cause first.
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
    // A slow rank is the least severe finding, and it may have been slow from the start. So this
    // finding comes last.
    findings
        .sort_by_key(|finding| (finding.class == FindingClass::Slow, finding.since, finding.class));
    findings
}
