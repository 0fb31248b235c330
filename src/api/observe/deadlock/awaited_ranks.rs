//! The ranks for which the running collectives of this process wait, as the algorithms report them.
//!
//! Such a report says that a collective cannot end before each of the ranks takes part in it. The
//! descriptor of a collective does not tell this in all cases: the root of a broadcast waits for
//! other ranks only if their buffers are full.

use crate::api::observe::recorder::short_group_id;
use crate::base::ids::{GroupId, Rank};
use crate::base::sync::lock;
use std::sync::Mutex;
use std::time::Instant;

/// The wait of an algorithm for other ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AwaitedRanks {
    /// The number of the wait in this process. Further reports of the same wait do not change it.
    pub(super) number: u64,
    /// The sequence number of the collective that waits.
    pub(super) sequence: u64,
    pub(super) ranks: Vec<Rank>,
}

/// The last report of one rank of a group.
#[derive(Clone, Debug)]
pub(super) struct AwaitedRanksReport {
    group: u64,
    rank: Rank,
    pub(super) awaited: AwaitedRanks,
    pub(super) reported: Instant,
}

#[derive(Debug)]
struct Reports {
    last_number: u64,
    list: Vec<AwaitedRanksReport>,
}

static REPORTS: Mutex<Reports> = Mutex::new(Reports { last_number: 0, list: Vec::new() });

/// Records the ranks for which a collective of `rank` waits. An empty list ends the wait.
pub(in crate::api) fn record_awaited_ranks(
    group: GroupId,
    rank: Rank,
    sequence: u64,
    ranks: &[Rank],
) {
    let (group, reported) = (short_group_id(group), Instant::now());
    let mut reports = lock(&REPORTS);
    let is_own = |report: &AwaitedRanksReport| (report.group, report.rank) == (group, rank);
    let before = reports.list.iter().position(is_own).map(|at| reports.list.swap_remove(at));
    if ranks.is_empty() {
        return;
    }
    reports.last_number += 1;
    let new = AwaitedRanks { number: reports.last_number, sequence, ranks: ranks.to_vec() };
    let same = before.map(|report| report.awaited);
    let same = same.filter(|old| (old.sequence, &old.ranks) == (sequence, &new.ranks));
    reports.list.push(AwaitedRanksReport { group, rank, awaited: same.unwrap_or(new), reported });
}

/// Returns the last report of a rank of a group, if its collective waits.
pub(super) fn awaited_ranks(group: u64, rank: Rank) -> Option<AwaitedRanksReport> {
    lock(&REPORTS).list.iter().find(|report| (report.group, report.rank) == (group, rank)).cloned()
}
