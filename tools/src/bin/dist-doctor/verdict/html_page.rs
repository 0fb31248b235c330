//! The report as a page for a browser: the verdict at the top, which rank waits for which rank, and
//! for each group the operations of its ranks over time.
//!
//! The page is one file without scripts and without links to other files. All texts of the dumps
//! are escaped, because the dumps may be manipulated. The functions do no I/O.

use super::report::{MAX_RANKS_SHOWN, headline};
use super::waiting::{RankWait, rank_waits};
use super::{Finding, FindingClass};
use crate::job::{JobDumps, JobGroup};
use crate::recorder_dump::{OperationRecord, OperationState};
use crate::text;
use std::collections::BTreeSet;

/// The largest number of operations of a rank that the page shows: the last ones.
const MAX_OPERATIONS_SHOWN: usize = 200;
/// The largest number of waits that the page lists.
const MAX_WAITS_SHOWN: usize = 200;

/// The size of the chart and its parts, in pixels.
const LABEL_WIDTH: f64 = 90.0;
const CHART_WIDTH: f64 = 900.0;
const ROW_HEIGHT: f64 = 18.0;
const AXIS_HEIGHT: f64 = 24.0;
/// The smallest width of an operation, so that a short one is visible.
const MIN_WIDTH: f64 = 1.5;

const STYLE: &str = "\
body{font:14px system-ui,sans-serif;margin:2em;max-width:1040px;color:#1f2328;background:#fff}\
.verdict{border-left:6px solid #cf222e;padding:.6em 1em;background:#ffebe9;font-weight:600}\
.verdict.healthy{border-color:#1a7f37;background:#dafbe1}\
table{border-collapse:collapse}td,th{border:1px solid #d0d7de;padding:.25em .6em;text-align:left}\
svg{font:11px system-ui,sans-serif}text{fill:currentColor}.row{stroke:#d0d7de}\
.done{fill:#2da44e}.running{fill:#bf8700}.waiting{fill:#8c959f}.failed{fill:#cf222e}\
.key{display:inline-block;width:.8em;height:.8em;margin:0 .3em 0 1em}\
.culprit{font-weight:700;fill:#cf222e}\
@media(prefers-color-scheme:dark){body{color:#e6edf3;background:#0d1117}.verdict{background:#3c1618}\
.verdict.healthy{background:#12261e}td,th{border-color:#30363d}.row{stroke:#30363d}}";

/// Returns the page.
pub(super) fn page(job: &JobDumps, findings: &[Finding]) -> String {
    let class = if findings.is_empty() { "verdict healthy" } else { "verdict" };
    let verdict = escape(&headline(job, findings));
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <title>dist-doctor</title>\n<style>{STYLE}</style>\n</head>\n<body>\n\
         <h1>dist-doctor</h1>\n<p class=\"{class}\">{verdict}</p>\n"
    );
    let further = findings.iter().skip(1).map(|finding| format!("also: {}", finding.text));
    let remarks = job.remarks.iter().map(|remark| format!("note: {remark}"));
    let lines: Vec<String> = further.chain(remarks).collect();
    if !lines.is_empty() {
        let items: String = lines.iter().map(|it| format!("<li>{}</li>\n", escape(it))).collect();
        html += &format!("<ul>\n{items}</ul>\n");
    }
    html += &waits_section(job);
    for (number, group) in job.groups.iter().enumerate() {
        html += &group_section(job, group, &culprits_of(findings, number));
    }
    html + "</body>\n</html>\n"
}

/// Returns the culprits in a group. A slow rank has not stopped the job, so it does not count.
fn culprits_of(findings: &[Finding], group: usize) -> BTreeSet<usize> {
    let own = findings.iter().filter(|it| it.group == group && it.class != FindingClass::Slow);
    own.flat_map(|finding| finding.culprits.iter().copied()).collect()
}

/// Returns the table of the waits.
fn waits_section(job: &JobDumps) -> String {
    let waits = rank_waits(job);
    if waits.is_empty() {
        return String::new();
    }
    let taken = job.dumps.iter().map(|dump| dump.taken_unix_ns()).max().unwrap_or(0);
    let row = |wait: &RankWait| {
        let group = &job.groups[wait.group];
        let awaited: Vec<usize> = wait.awaited.iter().copied().collect();
        let cells = [
            group.describe_rank(wait.waiter),
            text::ranks_text(&awaited),
            wait.operation.clone(),
            group.name.clone(),
            text::span_text(taken.saturating_sub(wait.since)),
        ];
        let cells: String = cells.iter().map(|it| format!("<td>{}</td>", escape(it))).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let rows: String = waits.iter().take(MAX_WAITS_SHOWN).map(row).collect();
    let more = match waits.len().saturating_sub(MAX_WAITS_SHOWN) {
        0 => String::new(),
        count => format!("<p>and {count} more</p>\n"),
    };
    format!(
        "<h2>Which rank waits for which rank</h2>\n<table>\n<tr><th>rank</th><th>waits for</th>\
         <th>in</th><th>of group</th><th>since</th></tr>\n{rows}</table>\n{more}"
    )
}

/// Returns the section of a group: its ranks, and their operations over time.
fn group_section(job: &JobDumps, group: &JobGroup, culprits: &BTreeSet<usize>) -> String {
    let title = escape(&group.name);
    let mut html = format!("<h2>Group {title}: {} ranks</h2>\n", group.size);
    let missing = group.ranks_without_dump();
    if !missing.is_empty() {
        html += &format!("<p>no dump of {}</p>\n", escape(&text::ranks_text(&missing)));
    }
    html += "<p>\
        <span class=\"key\" style=\"background:#2da44e\"></span>done\
        <span class=\"key\" style=\"background:#bf8700\"></span>running\
        <span class=\"key\" style=\"background:#8c959f\"></span>waits for earlier operations\
        <span class=\"key\" style=\"background:#cf222e\"></span>failed</p>\n";
    html += &chart(job, group, culprits);
    let items: String = group
        .timelines
        .iter()
        .take(MAX_RANKS_SHOWN)
        .map(|(&rank, timeline)| {
            let activity = job.current_activity(timeline.dump_index);
            let failure = timeline.failure.as_ref();
            let failure =
                failure.map_or_else(String::new, |it| format!("; failed: {}", it.message));
            let line = format!("{}: {activity}{failure}", group.describe_rank(rank));
            format!("<li>{}</li>\n", escape(&line))
        })
        .collect();
    html + &format!("<ul>\n{items}</ul>\n")
}

/// A row of the chart: a rank, and its last operations with their times on the wall clock.
struct ChartRow<'a> {
    rank: usize,
    operations: Vec<(u64, u64, &'a OperationRecord)>,
}

/// Returns the last operations of the ranks of a group.
fn chart_rows<'a>(job: &'a JobDumps, group: &JobGroup) -> Vec<ChartRow<'a>> {
    let row = |(&rank, timeline): (&usize, &crate::job::RankTimeline)| {
        let dump = &job.dumps[timeline.dump_index];
        let own = dump.entries.iter().filter(|it| (it.group, it.rank) == (group.id, rank));
        let mut operations: Vec<(u64, u64, &OperationRecord)> = own
            .map(|entry| {
                let begin = dump.to_unix_ns(entry.issued_ns);
                let end = dump.to_unix_ns(entry.ended_ns.unwrap_or(dump.taken_ns));
                (begin, end.max(begin), entry)
            })
            .collect();
        operations.sort_by_key(|&(begin, ..)| begin);
        let first = operations.len().saturating_sub(MAX_OPERATIONS_SHOWN);
        ChartRow { rank, operations: operations.split_off(first) }
    };
    group.timelines.iter().take(MAX_RANKS_SHOWN).map(row).collect()
}

/// Returns the chart of ranks and operations over time.
#[allow(clippy::cast_precision_loss, reason = "a coordinate needs few digits")]
fn chart(job: &JobDumps, group: &JobGroup, culprits: &BTreeSet<usize>) -> String {
    let rows = chart_rows(job, group);
    let times = || rows.iter().flat_map(|row| &row.operations);
    let (Some(begin), Some(end)) =
        (times().map(|&(begin, ..)| begin).min(), times().map(|&(_, end, _)| end).max())
    else {
        return "<p>no operations</p>\n".to_owned();
    };
    let span = (end - begin).max(1) as f64;
    let pixel = |time: u64| LABEL_WIDTH + (time.saturating_sub(begin)) as f64 / span * CHART_WIDTH;
    let (width, height) =
        (LABEL_WIDTH + CHART_WIDTH + 10.0, rows.len() as f64 * ROW_HEIGHT + AXIS_HEIGHT);
    let mut svg = format!(
        "<svg width=\"{width:.0}\" height=\"{height:.0}\" viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\">\n"
    );
    for (number, row) in rows.iter().enumerate() {
        let top = number as f64 * ROW_HEIGHT;
        let class = if culprits.contains(&row.rank) { " class=\"culprit\"" } else { "" };
        svg += &format!(
            "<text{class} x=\"0\" y=\"{:.1}\">rank {}</text>\
             <path class=\"row\" d=\"M{LABEL_WIDTH},{:.1}h{CHART_WIDTH}\"/>\n",
            top + ROW_HEIGHT * 0.7,
            row.rank,
            top + ROW_HEIGHT
        );
        for &(begin, end, entry) in &row.operations {
            let (left, right) = (pixel(begin), pixel(end));
            svg += &format!(
                "<rect class=\"{}\" x=\"{left:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\">\
                 <title>{}</title></rect>\n",
                state_class(&entry.state),
                top + 2.0,
                (right - left).max(MIN_WIDTH),
                ROW_HEIGHT - 4.0,
                escape(&format!("{}, {}", entry.description, text::span_text(end - begin)))
            );
        }
    }
    let bottom = height - AXIS_HEIGHT * 0.3;
    svg += &format!(
        "<text x=\"{LABEL_WIDTH}\" y=\"{bottom:.1}\">0</text>\
         <text x=\"{:.1}\" y=\"{bottom:.1}\" text-anchor=\"end\">{}</text>\n</svg>\n",
        LABEL_WIDTH + CHART_WIDTH,
        escape(&text::span_text(end - begin))
    );
    svg
}

fn state_class(state: &OperationState) -> &'static str {
    match state {
        OperationState::Waiting => "waiting",
        OperationState::Running => "running",
        OperationState::Done => "done",
        OperationState::Failed(_) => "failed",
    }
}

/// Returns a text that a browser shows as it is.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}
