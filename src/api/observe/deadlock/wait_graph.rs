//! The search for a deadlock among the edges of all waits.
//!
//! An edge has one or more targets. The wait at its beginning cannot end before one of the targets
//! ends: a receive from any rank, for example, has one edge with all ranks as its targets. A set of
//! waits is *closed* if each branch of each of them has an edge whose targets are all in the set.
//! None of the waits of a closed set can be the first to end.

use super::blocked_record::{WaitBranch, WaitEdge, WaitId};
use crate::base::ids::Rank;
use crate::base::sort::sort_by_key;
use std::collections::{HashMap, HashSet, VecDeque};

/// The maximum number of waits whose edges one search reads.
const MAX_VISITED: usize = 4096;

/// The maximum number of waits, and of edges of each wait, in the description of a deadlock.
const MAX_DESCRIBED: usize = 16;

/// A wait of a closed set, with the edges that keep it there: one edge of each branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClosedWait {
    pub(super) wait: WaitId,
    pub(super) edges: Vec<WaitEdge>,
}

impl ClosedWait {
    /// Returns the rank of the process in the outermost group.
    pub(super) fn rank(&self) -> Option<Rank> {
        self.edges.first().map(|edge| edge.from)
    }

    /// Describes the wait, for example "rank 0 waits for rank 1 in barrier #3 of group world".
    fn describe(&self) -> String {
        let mut texts: Vec<&str> = self.edges.iter().map(|edge| edge.text.as_str()).collect();
        texts.dedup();
        let more = texts.len().saturating_sub(MAX_DESCRIBED);
        texts.truncate(MAX_DESCRIBED);
        let others = if more > 0 { format!(" or for {more} more") } else { String::new() };
        let rank = self.rank().unwrap_or_default();
        format!("rank {rank} waits for {}{others}", texts.join(" or for "))
    }

    fn has_one_target(&self) -> bool {
        matches!(self.edges.as_slice(), [edge] if edge.targets.len() == 1)
    }
}

/// The waits that were found, with their branches.
struct WaitGraph {
    branches: HashMap<WaitId, Vec<WaitBranch>>,
}

/// Searches for a closed set of waits that contains the wait `own` with the branches `first`, and
/// in which `own` waits for itself through the others. Returns the set, with `own` as its first
/// wait. `branches_of` returns the branches of another wait, if this is still the wait of its
/// process.
pub(super) fn find_deadlock(
    own: &WaitId,
    first: &[WaitBranch],
    branches_of: impl FnMut(&WaitId) -> Option<Vec<WaitBranch>>,
) -> Option<Vec<ClosedWait>> {
    let mut graph = WaitGraph::read(own, first, branches_of);
    graph.remove_waits_that_may_end();
    let distances = graph.distances_to(own);
    // Without this check, `own` might only wait for a deadlock of other processes.
    graph.edges_of(own).filter_map(|edge| nearest(edge, &distances)).min()?;
    Some(graph.choose(own, &distances))
}

impl WaitGraph {
    /// Reads the branches of all waits that can be reached from `own`.
    fn read(
        own: &WaitId,
        first: &[WaitBranch],
        mut branches_of: impl FnMut(&WaitId) -> Option<Vec<WaitBranch>>,
    ) -> Self {
        let targets = |branches: &[WaitBranch]| -> Vec<WaitId> {
            branches.iter().flatten().flat_map(|edge| edge.targets.clone()).collect()
        };
        let mut branches = HashMap::from([(own.clone(), first.to_vec())]);
        let mut visited = HashSet::from([own.clone()]);
        let mut open = VecDeque::from(targets(first));
        while let Some(wait) = open.pop_front() {
            if visited.len() >= MAX_VISITED || !visited.insert(wait.clone()) {
                continue;
            }
            if let Some(found) = branches_of(&wait) {
                open.extend(targets(&found));
                branches.insert(wait, found);
            }
        }
        Self { branches }
    }

    fn edges_of(&self, wait: &WaitId) -> impl Iterator<Item = &WaitEdge> {
        self.branches.get(wait).into_iter().flatten().flatten()
    }

    /// Keeps the largest closed set, and only the edges whose targets are all in the set.
    fn remove_waits_that_may_end(&mut self) {
        loop {
            let known: HashSet<WaitId> = self.branches.keys().cloned().collect();
            self.branches.retain(|_, branches| {
                for edges in branches.iter_mut() {
                    edges.retain(|edge| edge.targets.iter().all(|target| known.contains(target)));
                }
                !branches.is_empty() && branches.iter().all(|edges| !edges.is_empty())
            });
            if self.branches.len() == known.len() {
                return;
            }
        }
    }

    /// Returns the distance of each wait to `own`, for the waits that wait for `own`.
    fn distances_to(&self, own: &WaitId) -> HashMap<WaitId, usize> {
        let mut distances = HashMap::from([(own.clone(), 0)]);
        for distance in 1..=self.branches.len() {
            let is_near = |edge: &WaitEdge| nearest(edge, &distances) == Some(distance - 1);
            let mut next = Vec::new();
            for wait in self.branches.keys() {
                if !distances.contains_key(wait) && self.edges_of(wait).any(is_near) {
                    next.push((wait.clone(), distance));
                }
            }
            if next.is_empty() {
                break;
            }
            distances.extend(next);
        }
        distances
    }

    /// Returns the closed set that results if each branch keeps the edge that leads back to `own`
    /// on the shortest way.
    fn choose(&self, own: &WaitId, distances: &HashMap<WaitId, usize>) -> Vec<ClosedWait> {
        let (mut chosen, mut visited) = (Vec::new(), HashSet::from([own.clone()]));
        let mut open = VecDeque::from([own.clone()]);
        let rank = |edge: &&WaitEdge| nearest(edge, distances).unwrap_or(usize::MAX);
        while let Some(wait) = open.pop_front() {
            let branches = self.branches.get(&wait).into_iter().flatten();
            let edges: Vec<WaitEdge> =
                branches.filter_map(|edges| edges.iter().min_by_key(rank).cloned()).collect();
            for target in edges.iter().flat_map(|edge| &edge.targets) {
                if visited.insert(target.clone()) {
                    open.push_back(target.clone());
                }
            }
            chosen.push(ClosedWait { wait, edges });
        }
        chosen
    }
}

/// Returns the smallest distance of the edge's targets.
fn nearest(edge: &WaitEdge, distances: &HashMap<WaitId, usize>) -> Option<usize> {
    edge.targets.iter().filter_map(|target| distances.get(target).copied()).min()
}

/// Describes a deadlock. All processes of a cycle get the same text, which begins with the lowest
/// rank.
pub(super) fn describe_deadlock(waits: &[ClosedWait]) -> String {
    let key = |wait: &ClosedWait| (wait.rank(), wait.describe());
    let mut waits = waits.to_vec();
    if waits.iter().all(ClosedWait::has_one_target) {
        let first = (0..waits.len()).min_by_key(|&at| key(&waits[at])).unwrap_or(0);
        waits.rotate_left(first);
    } else {
        sort_by_key(&mut waits, key);
    }
    let texts: Vec<String> = waits.iter().take(MAX_DESCRIBED).map(ClosedWait::describe).collect();
    let text = texts.join("; ");
    match waits.len().saturating_sub(MAX_DESCRIBED) {
        0 => format!("deadlock: {text}"),
        more => format!("deadlock: {text}; and {more} more waits"),
    }
}
