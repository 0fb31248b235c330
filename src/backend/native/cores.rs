//! Detects whether the ranks of a host are oversubscribed, that is, whether they cannot all have a
//! core of their own. If they are not oversubscribed, a waiting rank may spin without delaying the
//! ranks that it waits for.
//!
//! The cores of a rank are the affinity mask of its thread at the bootstrap, limited by the CPU
//! quota of its control group. Examples:
//!
//! - A launcher binds each rank to a different core: not oversubscribed.
//! - All ranks may use all cores, and there are as many cores as ranks: not oversubscribed.
//! - Two ranks are bound to the same core: oversubscribed, even if the host has idle cores.

use crate::sys::{host, thread};
use std::fmt;

/// The number of core numbers that `parse` accepts: 0 to this number minus 1.
const MAX_CORES: usize = 8192;

/// The cores on which one rank may run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AllowedCores {
    /// The core numbers, in ascending order.
    allowed: Vec<usize>,
    /// The number of cores that the rank may use at the same time. The CPU quota can make it
    /// smaller than the length of `allowed`.
    granted: usize,
}

impl AllowedCores {
    /// Returns the cores of the calling thread.
    pub(super) fn of_this_thread() -> Self {
        let allowed = thread::allowed_cores();
        let at_once = host::cores().min(allowed.len());
        Self { allowed, granted: at_once }
    }

    /// Parses the text that `Display` writes.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (at_once, list) = text.split_once(" of ")?;
        let mut allowed = Vec::new();
        for range in list.split(',').filter(|range| !range.is_empty()) {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
            if last < first
                || last >= MAX_CORES
                || allowed.last().is_some_and(|&before| before >= first)
            {
                return None;
            }
            allowed.extend(first..=last);
        }
        let at_once = at_once.parse().ok()?;
        (at_once <= allowed.len()).then_some(Self { allowed, granted: at_once })
    }
}

impl fmt::Display for AllowedCores {
    /// Writes the number of granted cores and the list of allowed cores. For example, `2 of 0-3,8`
    /// means that the rank may use 2 cores at the same time, of the cores 0 to 3 and 8.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of ", self.granted)?;
        let runs = self.allowed.chunk_by(|one, next| one + 1 == *next);
        for (index, run) in runs.enumerate() {
            let comma = if index == 0 { "" } else { "," };
            match run {
                [only] => write!(f, "{comma}{only}")?,
                [first, .., last] => write!(f, "{comma}{first}-{last}")?,
                [] => {}
            }
        }
        Ok(())
    }
}

/// Returns true if the ranks of one host cannot all run at the same time on their allowed cores.
pub(super) fn are_oversubscribed(ranks: &[&AllowedCores]) -> bool {
    let is_granted = |rank: &&AllowedCores| {
        let is_limited = rank.granted < rank.allowed.len();
        !is_limited || ranks.len() <= rank.granted
    };
    !ranks.iter().all(is_granted) || !has_core_for_each_rank(ranks)
}

/// Returns true if each rank can have a core of its own. The function computes a bipartite matching
/// of ranks and cores with augmenting paths.
fn has_core_for_each_rank(ranks: &[&AllowedCores]) -> bool {
    let mut all: Vec<usize> = ranks.iter().flat_map(|rank| rank.allowed.iter().copied()).collect();
    all.sort_unstable();
    all.dedup();
    if all.len() < ranks.len() {
        return false;
    }
    let mut owners = vec![None; all.last().map_or(0, |last| last + 1)];
    (0..ranks.len()).all(|rank| {
        let mut visited = vec![false; owners.len()];
        assign_core(rank, ranks, &mut owners, &mut visited)
    })
}

/// Assigns a core to a rank, and returns true if this is possible. If another rank owns the core,
/// the function moves that rank to another core.
fn assign_core(
    rank: usize,
    ranks: &[&AllowedCores],
    owners: &mut [Option<usize>],
    visited: &mut [bool],
) -> bool {
    // The function tries free cores first. If all ranks may use all cores, no rank has to move.
    let free = ranks[rank].allowed.iter().find(|&&core| owners[core].is_none());
    if let Some(&core) = free {
        owners[core] = Some(rank);
        return true;
    }
    for &core in &ranks[rank].allowed {
        if std::mem::replace(&mut visited[core], true) {
            continue;
        }
        let can_move = owners[core].is_none_or(|owner| assign_core(owner, ranks, owners, visited));
        if can_move {
            owners[core] = Some(rank);
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cores(texts: &[&str]) -> Vec<AllowedCores> {
        texts.iter().map(|text| AllowedCores::parse(text).unwrap()).collect()
    }

    fn oversubscribed(texts: &[&str]) -> bool {
        are_oversubscribed(&cores(texts).iter().collect::<Vec<_>>())
    }

    #[test]
    fn core_list_round_trips_through_text() {
        for text in ["2 of 0-1", "1 of 7", "3 of 0-1,3-4,8", "0 of "] {
            assert_eq!(AllowedCores::parse(text).unwrap().to_string(), text);
        }
        let own = AllowedCores::of_this_thread();
        assert_eq!(AllowedCores::parse(&own.to_string()), Some(own));
        for bad in ["", "2", "0-1", "3 of 0-1", "1 of 3-2", "1 of 0,0", "1 of 0-99999", "x of 1"] {
            assert_eq!(AllowedCores::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn ranks_on_different_cores_are_not_oversubscribed() {
        assert!(!oversubscribed(&["1 of 0", "1 of 1"]));
        assert!(!oversubscribed(&["2 of 0-1", "2 of 0-1"]));
        // Rank 0 must use core 1 so that rank 1 can have core 0.
        assert!(!oversubscribed(&["2 of 0-1", "1 of 0", "3 of 0-2"]));
        assert!(!oversubscribed(&["2 of 0-1", "2 of 1-2", "2 of 2-3", "1 of 0"]));
    }

    #[test]
    fn ranks_sharing_a_core_are_oversubscribed() {
        assert!(oversubscribed(&["1 of 0", "1 of 0"]));
        assert!(oversubscribed(&["1 of 0", "8 of 0-7", "1 of 0"]));
        assert!(oversubscribed(&["2 of 0-1", "2 of 0-1", "2 of 0-1", "8 of 0-7"]));
        // The control group grants the CPU time of two cores on eight cores.
        assert!(oversubscribed(&["2 of 0-7", "2 of 0-7", "2 of 0-7"]));
        assert!(!oversubscribed(&["2 of 0-7", "2 of 0-7"]));
    }
}
