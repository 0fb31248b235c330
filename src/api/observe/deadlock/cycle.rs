//! Cycles of edges between waits. The functions have no side effects.

use super::blocked_record::WaitEdge;
use std::collections::HashSet;

/// The maximum number of waits that a search visits.
const MAX_VISITED: usize = 64;

/// Searches a path of edges from the wait with the edges `first` back to itself: the wait with the
/// number `wait` of the process `process`. `edges_of` returns the edges of another wait, if this is
/// still the wait of its process.
pub(super) fn find_cycle(
    (process, wait): (&str, u64),
    first: &[WaitEdge],
    mut edges_of: impl FnMut(&str, u64) -> Option<Vec<WaitEdge>>,
) -> Option<Vec<WaitEdge>> {
    let mut visited = HashSet::new();
    // The path, and for each wait on the path its edges that were not followed yet.
    let (mut path, mut open) = (Vec::new(), vec![first.to_vec()]);
    while let Some(edges) = open.last_mut() {
        let Some(edge) = edges.pop() else {
            open.pop();
            path.pop();
            continue;
        };
        if edge.process == process {
            if edge.wait == wait {
                path.push(edge);
                return Some(path);
            }
            continue;
        }
        if visited.len() >= MAX_VISITED || !visited.insert((edge.process.clone(), edge.wait)) {
            continue;
        }
        if let Some(next) = edges_of(&edge.process, edge.wait) {
            path.push(edge);
            open.push(next);
        }
    }
    None
}

/// Describes a cycle. All processes of the cycle get the same text, which begins with the lowest
/// rank.
pub(super) fn describe_cycle(cycle: &[WaitEdge]) -> String {
    let first = (0..cycle.len()).min_by_key(|&at| (cycle[at].from, &cycle[at].text)).unwrap_or(0);
    let (after, before) = (&cycle[first..], &cycle[..first]);
    let texts: Vec<&str> = after.iter().chain(before).map(|edge| edge.text.as_str()).collect();
    format!("deadlock: {}", texts.join("; "))
}
