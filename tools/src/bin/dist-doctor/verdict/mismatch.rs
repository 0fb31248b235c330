//! Finds the first sequence number of a group under which ranks made different calls. For example,
//! rank 0 called all_reduce as operation 57 of the group, and the other ranks called broadcast.

use super::{Finding, FindingClass};
use crate::job::JobDumps;
use crate::text;
use std::collections::BTreeMap;

/// A party is the set of ranks that made the same call. The report shows at most this number of
/// parties.
const PARTIES_SHOWN: usize = 4;

pub(super) fn find_mismatch(job: &JobDumps, number: usize) -> Option<Finding> {
    let group = &job.groups[number];
    // For each sequence number and each call, the ranks that made the call.
    let mut calls: BTreeMap<u64, BTreeMap<&str, Vec<usize>>> = BTreeMap::new();
    for (&rank, timeline) in &group.timelines {
        let late_sequence = timeline
            .entry_by_sequence
            .keys()
            .next_back()
            .filter(|_| timeline.is_last_call_after_failure);
        for (sequence, entry) in
            job.calls(timeline).filter(|(sequence, _)| Some(sequence) != late_sequence)
        {
            let ranks_by_call = calls.entry(sequence).or_default();
            ranks_by_call.entry(&entry.description).or_default().push(rank);
        }
    }
    let (sequence, mut parties) = calls.into_iter().find(|(_, parties)| parties.len() > 1)?;
    // A call that was issued after the failure of the group is not a mismatch. But it shows which
    // call the rank would have made, so it counts for the majority.
    for (&rank, timeline) in
        group.timelines.iter().filter(|(_, timeline)| timeline.is_last_call_after_failure)
    {
        let call = job.entry(timeline, sequence).map(|entry| entry.description.as_str());
        call.and_then(|what| parties.get_mut(what)).into_iter().for_each(|party| party.push(rank));
    }
    parties.values_mut().for_each(|party| party.sort_unstable());
    let mut parties: Vec<(&str, Vec<usize>)> = parties.into_iter().collect();
    parties.sort_by_key(|(_, ranks)| (std::cmp::Reverse(ranks.len()), ranks[0]));
    // If there is no largest party, it is unknown which ranks made the wrong call, so all ranks are
    // culprits.
    let has_majority = parties[0].1.len() > parties[1].1.len();
    let culprit_ranks: Vec<usize> = if has_majority {
        parties.iter().skip(1).flat_map(|(_, ranks)| ranks.iter().copied()).collect()
    } else {
        parties.iter().flat_map(|(_, ranks)| ranks.iter().copied()).collect()
    };
    if has_majority {
        parties.rotate_left(1);
    }
    let more = parties.len().saturating_sub(PARTIES_SHOWN);
    let party_text = |(what, ranks): &(&str, Vec<usize>)| match ranks[..] {
        [rank] => format!("{} called {what}", group.describe_rank(rank)),
        _ => format!("{} called {what}", text::ranks_text(ranks)),
    };
    let mut parties_text =
        parties.iter().take(PARTIES_SHOWN).map(party_text).collect::<Vec<_>>().join(" and ");
    if more > 0 {
        parties_text.push_str(&format!(", and {more} more operations differ"));
    }
    let issued = culprit_ranks.iter().filter_map(|rank| {
        let timeline = &group.timelines[rank];
        let entry = job.entry(timeline, sequence)?;
        Some(job.dumps[timeline.dump_index].to_unix_ns(entry.issued_ns))
    });
    let since = issued.min().unwrap_or(u64::MAX);
    let text = format!("mismatch in group {}: {parties_text}", group.name);
    let mut culprits = culprit_ranks;
    culprits.sort_unstable();
    Some(Finding { class: FindingClass::Mismatch, group: number, text, culprits, since })
}
