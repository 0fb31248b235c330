//! The verdict, for people and for programs. Pure.

use super::Finding;
use crate::dump::Entry;
use crate::job::{Group, Job};
use crate::text;
use serde_json::{Value, json};

/// How many ranks of a group are told of one by one.
const RANKS_SHOWN: usize = 64;

/// The verdict in one line.
fn headline(job: &Job, findings: &[Finding]) -> String {
    if let Some(first) = findings.first() {
        return first.text.clone();
    }
    let missing: usize = job.groups.iter().map(|group| group.missing().len()).max().unwrap_or(0);
    let but = if missing > 0 {
        format!(", but {} of one group are missing", text::count(missing, "dump"))
    } else {
        String::new()
    };
    format!("nothing wrong was found in {}{but}", text::count(job.dumps.len(), "dump"))
}

/// For people: the verdict in the first line, what else was found, and where each rank is.
pub(super) fn text(job: &Job, findings: &[Finding]) -> String {
    let mut lines = vec![headline(job, findings)];
    lines.extend(findings.iter().skip(1).map(|finding| format!("also: {}", finding.text)));
    lines.extend(job.notes.iter().map(|note| format!("note: {note}")));
    for group in &job.groups {
        lines.push(String::new());
        lines.push(format!("group {} ({})", group.name, text::count(group.size, "rank")));
        let missing = group.missing();
        if !missing.is_empty() {
            lines.push(format!("  no dump of {}", text::ranks(&missing)));
        }
        for (&rank, line) in group.lines.iter().take(RANKS_SHOWN) {
            let last = last_finished(job, group, rank).map_or_else(
                || "it has finished nothing here".to_owned(),
                |entry| format!("last finished here: {}", entry.description),
            );
            let now = job.whereabouts(line.dump);
            lines.push(format!("  {}: {last}; {now}", group.who(rank)));
            if let Some(failure) = &line.failure {
                lines.push(format!("    failed: {}", failure.message));
            }
        }
        if group.lines.len() > RANKS_SHOWN {
            lines.push(format!("  and {} more", group.lines.len() - RANKS_SHOWN));
        }
    }
    lines.join("\n") + "\n"
}

fn last_finished<'a>(job: &'a Job, group: &'a Group, rank: usize) -> Option<&'a Entry> {
    let calls = job.calls(group.lines.get(&rank)?).map(|(_, entry)| entry);
    calls.filter(|entry| !entry.has_failed() && !entry.is_under_way()).last()
}

/// For programs.
pub(super) fn json(job: &Job, findings: &[Finding]) -> Value {
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
        "notes": job.notes,
        "groups": job.groups.iter().map(|group| describe(job, group)).collect::<Vec<_>>(),
    })
}

fn describe(job: &Job, group: &Group) -> Value {
    let rank = |&rank: &usize| {
        let line = &group.lines[&rank];
        let dump = &job.dumps[line.dump];
        json!({
            "rank": rank,
            "job_rank": dump.rank,
            "pid": dump.pid,
            "host": dump.host,
            "file": dump.file,
            "last_finished": last_finished(job, group, rank).map(|entry| entry.description.as_str()),
            "now": job.whereabouts(line.dump),
            "failure": line.failure.as_ref().map(|failure| json!({
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
        "missing": group.missing(),
        "ranks": group.lines.keys().map(rank).collect::<Vec<_>>(),
    })
}
