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

/// The last report of one rank of a group.
#[derive(Clone, Debug)]
pub(super) struct AwaitedRanks {
    group: u64,
    rank: Rank,
    /// The sequence number of the collective that waits.
    pub(super) sequence: u64,
    pub(super) ranks: Vec<Rank>,
    pub(super) reported: Instant,
}

static REPORTS: Mutex<Vec<AwaitedRanks>> = Mutex::new(Vec::new());

/// Records the ranks for which a collective of `rank` waits. An empty list ends the wait.
pub(in crate::api) fn record_awaited_ranks(
    group: GroupId,
    rank: Rank,
    sequence: u64,
    ranks: &[Rank],
) {
    let (group, reported) = (short_group_id(group), Instant::now());
    let mut reports = lock(&REPORTS);
    reports.retain(|report| (report.group, report.rank) != (group, rank));
    if !ranks.is_empty() {
        let ranks = ranks.to_vec();
        reports.push(AwaitedRanks { group, rank, sequence, ranks, reported });
    }
}

/// Returns the last report of a rank of a group, if its collective waits.
pub(super) fn awaited_ranks(group: u64, rank: Rank) -> Option<AwaitedRanks> {
    lock(&REPORTS).iter().find(|report| (report.group, report.rank) == (group, rank)).cloned()
}
