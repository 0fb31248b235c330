//! Ranks that called something else under the same number: the first such operation of a group.

use super::{Class, Finding};
use crate::job::Job;
use crate::text;
use std::collections::BTreeMap;

/// How many parties are told of.
const PARTIES_SHOWN: usize = 4;

pub(super) fn find(job: &Job, number: usize) -> Option<Finding> {
    let group = &job.groups[number];
    // Who has called what under each number.
    let mut calls: BTreeMap<u64, BTreeMap<&str, Vec<usize>>> = BTreeMap::new();
    for (&rank, line) in &group.lines {
        let late = line.calls.keys().next_back().filter(|_| line.is_late);
        for (sequence, entry) in job.calls(line).filter(|(sequence, _)| Some(sequence) != late) {
            let what = calls.entry(sequence).or_default();
            what.entry(&entry.description).or_default().push(rank);
        }
    }
    let (sequence, mut parties) = calls.into_iter().find(|(_, parties)| parties.len() > 1)?;
    // Who came when it had failed already makes no difference of its own, and yet says who is
    // right.
    for (&rank, line) in group.lines.iter().filter(|(_, line)| line.is_late) {
        let what = job.entry(line, sequence).map(|entry| entry.description.as_str());
        what.and_then(|what| parties.get_mut(what)).into_iter().for_each(|party| party.push(rank));
    }
    parties.values_mut().for_each(|party| party.sort_unstable());
    let mut parties: Vec<(&str, Vec<usize>)> = parties.into_iter().collect();
    parties.sort_by_key(|(_, ranks)| (std::cmp::Reverse(ranks.len()), ranks[0]));
    // Where no party is the largest, nobody knows who is right.
    let is_clear = parties[0].1.len() > parties[1].1.len();
    let odd: Vec<usize> = if is_clear {
        parties.iter().skip(1).flat_map(|(_, ranks)| ranks.iter().copied()).collect()
    } else {
        parties.iter().flat_map(|(_, ranks)| ranks.iter().copied()).collect()
    };
    if is_clear {
        parties.rotate_left(1);
    }
    let more = parties.len().saturating_sub(PARTIES_SHOWN);
    let said = |(what, ranks): &(&str, Vec<usize>)| match ranks[..] {
        [rank] => format!("{} called {what}", group.who(rank)),
        _ => format!("{} called {what}", text::ranks(ranks)),
    };
    let mut told = parties.iter().take(PARTIES_SHOWN).map(said).collect::<Vec<_>>().join(" and ");
    if more > 0 {
        told.push_str(&format!(", and there are {more} more"));
    }
    let issued = odd.iter().filter_map(|rank| {
        let line = &group.lines[rank];
        let entry = job.entry(line, sequence)?;
        Some(job.dumps[line.dump].on_the_wall(entry.issued_ns))
    });
    let since = issued.min().unwrap_or(u64::MAX);
    let text = format!("mismatch in group {}: {told}", group.name);
    let mut culprits = odd;
    culprits.sort_unstable();
    Some(Finding { class: Class::Mismatch, group: number, text, culprits, since })
}
