//! Formats the verdict for users and for programs. The functions do no I/O.

use super::Finding;
use crate::job::{JobDumps, JobGroup};
use crate::recorder_dump::OperationRecord;
use crate::text;
use dist_tools::count_text;
use serde_json::{Value, json};

/// The largest number of ranks of a group that are shown individually.
pub(super) const MAX_RANKS_SHOWN: usize = 64;

/// Returns the verdict in one line.
pub(super) fn headline(job: &JobDumps, findings: &[Finding]) -> String {
    if let Some(first) = findings.first() {
        return first.text.clone();
    }
    let missing: usize =
        job.groups.iter().map(|group| group.ranks_without_dump().len()).max().unwrap_or(0);
    let missing_note = if missing > 0 {
        format!(", but {} of one group are missing", count_text(missing, "dump"))
    } else {
        String::new()
    };
    format!("no fault found in {}{missing_note}", count_text(job.dumps.len(), "dump"))
}

/// Builds the report for users: the verdict, further findings, and the activity of each rank.
pub(super) fn report_text(job: &JobDumps, findings: &[Finding]) -> String {
    let mut lines = vec![headline(job, findings)];
    lines.extend(findings.iter().skip(1).map(|finding| format!("also: {}", finding.text)));
    lines.extend(job.remarks.iter().map(|note| format!("note: {note}")));
    for group in &job.groups {
        lines.push(String::new());
        lines.push(format!("group {} ({})", group.name, count_text(group.size, "rank")));
        let missing = group.ranks_without_dump();
        if !missing.is_empty() {
            lines.push(format!("  no dump of {}", text::ranks_text(&missing)));
        }
        for (&rank, timeline) in group.timelines.iter().take(MAX_RANKS_SHOWN) {
            let last = last_finished(job, group, rank).map_or_else(
                || "it has finished no operation of this group".to_owned(),
                |entry| format!("last finished in this group: {}", entry.description),
            );
            let activity = job.current_activity(timeline.dump_index);
            lines.push(format!("  {}: {last}; {activity}", group.describe_rank(rank)));
            if let Some(failure) = &timeline.failure {
                lines.push(format!("    failed: {}", failure.message));
            }
        }
        if group.timelines.len() > MAX_RANKS_SHOWN {
            lines.push(format!("  and {} more", group.timelines.len() - MAX_RANKS_SHOWN));
        }
    }
    lines.join("\n") + "\n"
}

fn last_finished<'a>(
    job: &'a JobDumps,
    group: &'a JobGroup,
    rank: usize,
) -> Option<&'a OperationRecord> {
    let calls = job.calls(group.timelines.get(&rank)?).map(|(_, entry)| entry);
    calls.filter(|entry| !entry.has_failed() && !entry.is_under_way()).last()
}

/// Builds the report for programs.
pub(super) fn report_json(job: &JobDumps, findings: &[Finding]) -> Value {
    let finding = |finding: &Finding| {
        let group = &job.groups[finding.group];
        let culprit = |&rank: &usize| {
            let member = group.members.get(rank);
            json!({
                "rank": rank,
                "global_rank": member.map(|member| member.global_rank),
                "pid": member.map(|member| member.pid),
                "host": member.map(|member| member.host.as_str()),
            })
        };
        json!({
            "class": finding.class.name(),
            "group": group.name,
            "group_id": format!("{:016x}", group.id),
            "text": finding.text,
            "culprits": finding.culprits.iter().map(culprit).collect::<Vec<_>>(),
        })
    };
    json!({
        "verdict": headline(job, findings),
        "findings": findings.iter().map(finding).collect::<Vec<_>>(),
        "notes": job.remarks,
        "groups": job.groups.iter().map(|group| group_json(job, group)).collect::<Vec<_>>(),
    })
}

fn group_json(job: &JobDumps, group: &JobGroup) -> Value {
    let rank = |&rank: &usize| {
        let timeline = &group.timelines[&rank];
        let dump = &job.dumps[timeline.dump_index];
        json!({
            "rank": rank,
            "job_rank": dump.rank,
            "pid": dump.pid,
            "host": dump.host,
            "file": dump.file,
            "last_finished": last_finished(job, group, rank).map(|entry| entry.description.as_str()),
            "now": job.current_activity(timeline.dump_index),
            "failure": timeline.failure.as_ref().map(|failure| json!({
                "kind": failure.kind,
                "message": failure.message,
                "culprit": failure.culprit,
            })),
        })
    };
    json!({
        "name": group.name,
        "id": format!("{:016x}", group.id),
        "size": group.size,
        "missing": group.ranks_without_dump(),
        "ranks": group.timelines.keys().map(rank).collect::<Vec<_>>(),
    })
}
