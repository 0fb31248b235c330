//! Tests of the records, the edges and the cycles, without other processes.

use super::blocked_calls::next_wait;
use super::blocked_record::{BlockedRecord, GroupSnapshot, WaitEdge};
use super::cycle::{describe_cycle, find_cycle};
use super::needs::{Need, NeededCall};
use std::collections::{BTreeMap, HashMap};

fn edge(from: usize, to: usize, wait: u64) -> WaitEdge {
    let text = format!("rank {from} waits for rank {to}");
    WaitEdge { from, process: format!("host/{to}"), wait, group: 7, text }
}

fn state(issued: u64) -> GroupSnapshot {
    GroupSnapshot { rank: 1, issued, sent: vec![(0, Some(64)), (2, None)], announced: vec![(0, 5)] }
}

fn record() -> BlockedRecord {
    BlockedRecord {
        wait: 3,
        may_fail: true,
        groups: BTreeMap::from([(7, state(4)), (u64::MAX, state(0))]),
        edges: vec![edge(1, 0, 2), edge(1, 2, u64::MAX)],
        confirmations: 9,
        has_failed: false,
    }
}

#[test]
fn records_round_trip_and_bad_bytes_are_refused() {
    let bytes = record().encode();
    assert_eq!(BlockedRecord::decode(&bytes), Some(record()));
    for end in 0..bytes.len() {
        assert_eq!(BlockedRecord::decode(&bytes[..end]), None, "{end}");
    }
    for bad in ["{}", "[]", "{\"wait\": -1}", &"[".repeat(5000)] {
        assert_eq!(BlockedRecord::decode(bad.as_bytes()), None, "{bad:.40}");
    }
    assert_eq!(BlockedRecord::decode(&vec![b' '; 2 << 20]), None);
}

#[test]
fn waits_of_two_processes_have_different_numbers() {
    assert_ne!(next_wait(0), next_wait(0));
    assert_eq!(next_wait(7), 8);
}

#[test]
fn needs_are_unmet_only_with_proof() {
    let unmet = |rank, call, group| Need { rank, call }.is_unmet(group, 0, &record());
    assert!(unmet(1, NeededCall::Collective(5), 7));
    assert!(!unmet(1, NeededCall::Collective(4), 7), "the rank has issued the call");
    assert!(!unmet(2, NeededCall::Collective(5), 7), "the record belongs to another rank");
    assert!(!unmet(1, NeededCall::Collective(5), 8), "the process is not in the group");
    assert!(unmet(1, NeededCall::Send { received: 64 }, 7));
    assert!(!unmet(1, NeededCall::Send { received: 63 }, 7), "a message may be on its way");
    assert!(unmet(1, NeededCall::Receive { number: 5 }, 7));
    assert!(!unmet(1, NeededCall::Receive { number: 6 }, 7), "a receive may have matched");
    // Some messages to rank 2 are not in the stream yet, and nothing was sent to rank 3.
    assert!(!state(0).has_sent_at_most(2, u64::MAX) && state(0).has_sent_at_most(3, 0));
}

/// Searches a cycle through wait 1 of process 0.
fn cycle_of(edges: &[WaitEdge]) -> Option<Vec<WaitEdge>> {
    let mut by_wait: HashMap<String, Vec<WaitEdge>> = HashMap::new();
    for edge in edges {
        by_wait.entry(format!("host/{}", edge.from)).or_default().push(edge.clone());
    }
    let first = by_wait.get("host/0").cloned().unwrap_or_default();
    find_cycle(("host/0", 1), &first, |process, wait| {
        by_wait.get(process).filter(|_| wait == 1).cloned()
    })
}

#[test]
fn cycles_are_found_through_any_number_of_processes() {
    for size in 1..40 {
        let mut edges: Vec<WaitEdge> = (0..size).map(|at| edge(at, (at + 1) % size, 1)).collect();
        let cycle = cycle_of(&edges).unwrap();
        assert_eq!(cycle, edges);
        // All processes of the cycle get the same text.
        let text = describe_cycle(&cycle);
        assert!(text.starts_with("deadlock: rank 0 waits for rank"), "{text}");
        edges.rotate_left(size / 2);
        assert_eq!(describe_cycle(&edges), text);
        edges.pop();
        assert_eq!(cycle_of(&edges), None);
    }
}

#[test]
fn cycles_need_the_present_waits() {
    assert_eq!(cycle_of(&[edge(0, 1, 1), edge(1, 0, 2)]), None, "process 0 waits anew");
    assert_eq!(cycle_of(&[edge(0, 1, 2), edge(1, 0, 1)]), None, "process 1 waits anew");
    // A cycle that does not contain process 0, and a way that branches.
    assert_eq!(cycle_of(&[edge(0, 1, 1), edge(1, 2, 1), edge(2, 1, 1)]), None);
    let branches = [edge(0, 1, 1), edge(1, 2, 1), edge(2, 3, 1), edge(1, 4, 1), edge(4, 0, 1)];
    let cycle = cycle_of(&branches).unwrap();
    let ranks: Vec<usize> = cycle.iter().map(|edge| edge.from).collect();
    assert_eq!(ranks, [0, 1, 4]);
}
