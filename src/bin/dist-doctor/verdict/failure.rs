//! What a group itself says that it failed of, as its ranks have it in their dumps.

use super::{Class, Finding};
use crate::dump::Fault;
use crate::job::Job;
use crate::text;

/// The kind of a failure by a deadline, of which the dumps may tell more than the failure does.
const LATE: &str = "Timeout";

/// A failure that is none by a deadline.
pub(super) fn unless_late(job: &Job, number: usize) -> Option<Finding> {
    any(job, number).filter(|_| reasons(job, number).iter().any(|(fault, _)| fault.kind != LATE))
}

/// Any failure.
pub(super) fn any(job: &Job, number: usize) -> Option<Finding> {
    let group = &job.groups[number];
    let reasons = reasons(job, number);
    let (most, ranks) = reasons.first()?;
    let mut text = format!("group {} has failed: {}", group.name, most.message);
    if let Some(culprit) =
        most.culprit.filter(|rank| !most.message.contains(&format!("rank {rank} ")))
    {
        text.push_str(&format!("; to blame is {}", group.who(culprit)));
    }
    if ranks.len() > 1 {
        text.push_str(&format!("; {} say so", text::ranks(ranks)));
    }
    for (other, ranks) in &reasons[1..] {
        text.push_str(&format!(", but {}: {}", text::ranks(ranks), other.message));
    }
    let culprits = reasons.iter().filter_map(|(fault, _)| fault.culprit);
    let mut culprits: Vec<usize> = culprits.collect();
    culprits.sort_unstable();
    culprits.dedup();
    // The first call that failed of it; else somebody noticed it without a call.
    let failed = group.lines.values().filter_map(|line| {
        let dump = &job.dumps[line.dump];
        let ended = job.calls(line).filter(|(_, entry)| entry.has_failed());
        let first = ended.filter_map(|(_, entry)| entry.ended_ns).min();
        Some(dump.on_the_wall(first.unwrap_or(dump.taken_ns))).filter(|_| line.failure.is_some())
    });
    let since = failed.min().unwrap_or(u64::MAX);
    Some(Finding { class: Class::Failure, group: number, text, culprits, since })
}

/// The different reasons, most named first, and which ranks name each.
fn reasons(job: &Job, number: usize) -> Vec<(&Fault, Vec<usize>)> {
    let mut reasons: Vec<(&Fault, Vec<usize>)> = Vec::new();
    for (&rank, line) in &job.groups[number].lines {
        let Some(fault) = &line.failure else { continue };
        let same = |known: &&mut (&Fault, Vec<usize>)| {
            (&known.0.kind, known.0.culprit) == (&fault.kind, fault.culprit)
        };
        match reasons.iter_mut().find(same) {
            Some((_, ranks)) => ranks.push(rank),
            None => reasons.push((fault, vec![rank])),
        }
    }
    reasons.sort_by_key(|(_, ranks)| std::cmp::Reverse(ranks.len()));
    reasons
}
