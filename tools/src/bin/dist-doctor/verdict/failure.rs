//! Finds groups that have failed. The dumps of their ranks contain the failure.

use super::{Finding, FindingClass};
use crate::job::JobDumps;
use crate::recorder_dump::GroupFailure;
use crate::text;

/// The kind of a timeout failure. For a timeout, other findings may show a more specific cause.
const TIMEOUT_KIND: &str = "Timeout";

/// Returns the failure of a group, unless all its ranks report a timeout.
pub(super) fn find_except_timeout(job: &JobDumps, number: usize) -> Option<Finding> {
    find_any(job, number).filter(|_| {
        failures_by_ranks(job, number).iter().any(|(fault, _)| fault.kind != TIMEOUT_KIND)
    })
}

/// Returns any failure of the group.
pub(super) fn find_any(job: &JobDumps, number: usize) -> Option<Finding> {
    let group = &job.groups[number];
    let failures = failures_by_ranks(job, number);
    let (most_named, ranks) = failures.first()?;
    let mut text = format!("group {} has failed: {}", group.name, most_named.message);
    if let Some(culprit) =
        most_named.culprit.filter(|rank| !most_named.message.contains(&format!("rank {rank} ")))
    {
        text.push_str(&format!("; the culprit is {}", group.describe_rank(culprit)));
    }
    if ranks.len() > 1 {
        text.push_str(&format!("; {} reported this", text::ranks_text(ranks)));
    }
    for (other, ranks) in &failures[1..] {
        text.push_str(&format!(", but {} reported: {}", text::ranks_text(ranks), other.message));
    }
    let culprits = failures.iter().filter_map(|(fault, _)| fault.culprit);
    let mut culprits: Vec<usize> = culprits.collect();
    culprits.sort_unstable();
    culprits.dedup();
    // The failure began when the first call failed. If no call failed, a rank detected the failure
    // outside of a call, so take the time of its dump.
    let failed = group.timelines.values().filter_map(|timeline| {
        let dump = &job.dumps[timeline.dump_index];
        let ended = job.calls(timeline).filter(|(_, entry)| entry.has_failed());
        let first = ended.filter_map(|(_, entry)| entry.ended_ns).min();
        Some(dump.to_unix_ns(first.unwrap_or(dump.taken_ns))).filter(|_| timeline.failure.is_some())
    });
    let since = failed.min().unwrap_or(u64::MAX);
    Some(Finding { class: FindingClass::Failure, group: number, text, culprits, since })
}

/// Returns the different failures of a group. Each failure comes with the ranks that report it, and
/// the failure with the most ranks comes first.
fn failures_by_ranks(job: &JobDumps, number: usize) -> Vec<(&GroupFailure, Vec<usize>)> {
    let mut failures: Vec<(&GroupFailure, Vec<usize>)> = Vec::new();
    for (&rank, timeline) in &job.groups[number].timelines {
        let Some(fault) = &timeline.failure else { continue };
        let same = |entry: &&mut (&GroupFailure, Vec<usize>)| {
            (&entry.0.kind, entry.0.culprit) == (&fault.kind, fault.culprit)
        };
        match failures.iter_mut().find(same) {
            Some((_, ranks)) => ranks.push(rank),
            None => failures.push((fault, vec![rank])),
        }
    }
    failures.sort_by_key(|(_, ranks)| std::cmp::Reverse(ranks.len()));
    failures
}
