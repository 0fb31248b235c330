//! Finds a rank for which the other ranks waited again and again.
//!
//! The method needs no common clock. In an operation that all ranks must enter, the rank that
//! enters last spends the shortest time. The second shortest time minus the shortest time is a
//! lower bound for the time that every other rank waited. For example, if the ranks spend 9, 8 and
//! 2 ms in a barrier, the third rank entered last, and the others waited at least 6 ms.

use super::{Finding, FindingClass};
use crate::job::JobDumps;
use crate::recorder_dump::OperationState;
use crate::text;
use std::collections::BTreeMap;

/// The collectives that no rank leaves before all ranks have entered them.
const SYNCHRONISING_COLLECTIVES: [&str; 5] =
    ["all_reduce", "all_gather", "reduce_scatter", "barrier", "all_to_all"];

/// The smallest number of operations for a finding.
const MIN_OPERATIONS: usize = 10;

/// A finding needs at least this share of operations in which the other ranks waited for the same
/// rank.
const MIN_SHARE_OF_CALLS: f64 = 0.7;
/// A finding needs at least this share of time in which the other ranks waited for the same rank.
const MIN_SHARE_OF_TIME: f64 = 0.2;

/// The smallest mean wait per operation for a finding, in nanoseconds.
const MIN_WAIT_PER_CALL_NS: u64 = 1_000_000;

pub(super) fn find_straggler(job: &JobDumps, number: usize) -> Option<Finding> {
    let group = &job.groups[number];
    // For each operation, the time that each rank spent in it.
    let mut times: BTreeMap<u64, Vec<(u64, usize)>> = BTreeMap::new();
    let (mut earliest, mut latest) = (u64::MAX, 0);
    for (&rank, timeline) in &group.timelines {
        let dump = &job.dumps[timeline.dump_index];
        for (sequence, entry) in job.calls(timeline) {
            let is_common =
                SYNCHRONISING_COLLECTIVES.iter().any(|name| entry.operation.starts_with(name));
            let (Some(started), Some(ended)) = (entry.started_ns, entry.ended_ns) else { continue };
            if is_common && entry.state == OperationState::Done {
                earliest = earliest.min(dump.to_unix_ns(started));
                latest = latest.max(dump.to_unix_ns(ended));
                let duration = ended.saturating_sub(started);
                times.entry(sequence).or_default().push((duration, rank));
            }
        }
    }
    // Keep only the operations that have the times of all ranks, and of at least two ranks.
    times.retain(|_, ranks| ranks.len() == group.timelines.len() && ranks.len() > 1);
    if times.len() < MIN_OPERATIONS {
        return None;
    }
    let mut waited_for_rank: BTreeMap<usize, (usize, u64)> = BTreeMap::new();
    for ranks in times.values_mut() {
        ranks.sort_unstable();
        let ((least, last), (next, _)) = (ranks[0], ranks[1]);
        let (calls, time) = waited_for_rank.entry(last).or_default();
        *calls += 1;
        *time += next - least;
    }
    let (&rank, &(calls, time)) = waited_for_rank.iter().max_by_key(|(_, (_, time))| *time)?;
    let span = latest.saturating_sub(earliest);
    let shares = (calls as f64 / times.len() as f64, time as f64 / span.max(1) as f64);
    if shares.0 < MIN_SHARE_OF_CALLS
        || shares.1 < MIN_SHARE_OF_TIME
        || time / (calls as u64) < MIN_WAIT_PER_CALL_NS
    {
        return None;
    }
    let text = format!(
        "{} was the last to enter {calls} of {} operations of group {}; the other ranks waited {} for it, {:.0} % \
         of the time",
        group.describe_rank(rank),
        times.len(),
        group.name,
        text::span_text(time),
        shares.1 * 100.0
    );
    Some(Finding {
        class: FindingClass::Slow,
        group: number,
        text,
        culprits: vec![rank],
        since: earliest,
    })
}
