//! The search for a deadlock among the edges of all waits.
//!
//! An edge has one or more targets. The wait at its beginning cannot end before one of the targets
//! ends: a receive from any rank, for example, has one edge with all ranks as its targets. A set of
//! waits is *closed* if each of them has an edge whose targets are all in the set. None of the
//! waits of a closed set can be the first to end.

use super::blocked_record::{WaitEdge, WaitId};
use std::collections::{HashMap, HashSet, VecDeque};

/// The maximum number of waits whose edges one search reads.
const MAX_VISITED: usize = 4096;

/// The maximum number of edges in the description of a deadlock.
const MAX_DESCRIBED: usize = 16;

/// The edge that keeps a wait in a closed set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClosedWait {
    pub(super) wait: WaitId,
    pub(super) edge: WaitEdge,
}

/// The waits that were found, with their edges.
struct WaitGraph {
    edges: HashMap<WaitId, Vec<WaitEdge>>,
}

/// Searches for a closed set of waits that contains the wait `own` with the edges `first`, and in
/// which `own` waits for itself through the others. Returns the set, with `own` as its first wait.
/// `edges_of` returns the edges of another wait, if this is still the wait of its process.
pub(super) fn find_deadlock(
    own: &WaitId,
    first: &[WaitEdge],
    edges_of: impl FnMut(&WaitId) -> Option<Vec<WaitEdge>>,
) -> Option<Vec<ClosedWait>> {
    let mut graph = WaitGraph::read(own, first, edges_of);
    graph.remove_waits_that_may_end();
    let distances = graph.distances_to(own);
    // Without this check, `own` might only wait for a deadlock of other processes.
    graph.edges.get(own)?.iter().filter_map(|edge| nearest(edge, &distances)).min()?;
    Some(graph.choose(own, &distances))
}

impl WaitGraph {
    /// Reads the edges of all waits that can be reached from `own`.
    fn read(
        own: &WaitId,
        first: &[WaitEdge],
        mut edges_of: impl FnMut(&WaitId) -> Option<Vec<WaitEdge>>,
    ) -> Self {
        let mut edges = HashMap::from([(own.clone(), first.to_vec())]);
        let mut visited = HashSet::from([own.clone()]);
        let mut open: VecDeque<WaitId> = first.iter().flat_map(|it| it.targets.clone()).collect();
        while let Some(wait) = open.pop_front() {
            if visited.len() >= MAX_VISITED || !visited.insert(wait.clone()) {
                continue;
            }
            if let Some(found) = edges_of(&wait) {
                open.extend(found.iter().flat_map(|edge| edge.targets.clone()));
                edges.insert(wait, found);
            }
        }
        Self { edges }
    }

    /// Keeps the largest closed set, and only the edges whose targets are all in the set.
    fn remove_waits_that_may_end(&mut self) {
        loop {
            let known: HashSet<WaitId> = self.edges.keys().cloned().collect();
            self.edges.retain(|_, edges| {
                edges.retain(|edge| edge.targets.iter().all(|target| known.contains(target)));
                !edges.is_empty()
            });
            if self.edges.len() == known.len() {
                return;
            }
        }
    }

    /// Returns the distance of each wait to `own`, for the waits that wait for `own`.
    fn distances_to(&self, own: &WaitId) -> HashMap<WaitId, usize> {
        let mut distances = HashMap::from([(own.clone(), 0)]);
        for distance in 1..=self.edges.len() {
            let mut next = Vec::new();
            for (wait, edges) in &self.edges {
                let is_near = |edge: &WaitEdge| nearest(edge, &distances) == Some(distance - 1);
                if !distances.contains_key(wait) && edges.iter().any(is_near) {
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

    /// Returns the closed set that results if each wait keeps the edge that leads back to `own` on
    /// the shortest way.
    fn choose(&self, own: &WaitId, distances: &HashMap<WaitId, usize>) -> Vec<ClosedWait> {
        let (mut chosen, mut visited) = (Vec::new(), HashSet::from([own.clone()]));
        let mut open = VecDeque::from([own.clone()]);
        while let Some(wait) = open.pop_front() {
            let edges = self.edges.get(&wait).into_iter().flatten();
            let rank = |edge: &&WaitEdge| nearest(edge, distances).unwrap_or(usize::MAX);
            let Some(edge) = edges.min_by_key(rank).cloned() else { continue };
            for target in &edge.targets {
                if visited.insert(target.clone()) {
                    open.push_back(target.clone());
                }
            }
            chosen.push(ClosedWait { wait, edge });
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
    let key = |wait: &ClosedWait| (wait.edge.from, wait.edge.text.clone());
    let mut waits = waits.to_vec();
    if waits.iter().all(|wait| wait.edge.targets.len() == 1) {
        let first = (0..waits.len()).min_by_key(|&at| key(&waits[at])).unwrap_or(0);
        waits.rotate_left(first);
    } else {
        waits.sort_by_key(key);
    }
    let texts = waits.iter().take(MAX_DESCRIBED).map(|wait| wait.edge.text.as_str());
    let text = texts.collect::<Vec<_>>().join("; ");
    match waits.len().saturating_sub(MAX_DESCRIBED) {
        0 => format!("deadlock: {text}"),
        more => format!("deadlock: {text}; and {more} more waits"),
    }
}
