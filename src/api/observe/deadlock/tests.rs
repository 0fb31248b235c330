//! Tests of the records, the edges and the cycles, without other processes.

use super::awaited_ranks::{AwaitedRanks, awaited_ranks, record_awaited_ranks};
use super::blocked_calls::next_wait;
use super::blocked_record::{BlockedRecord, GroupSnapshot, WaitBranch, WaitEdge, WaitId};
use super::message_memory::MessageMemory;
use super::needs::{
    CallerRank, Need, NeededCall, RankNeed, needs_of_collective, needs_of_enqueued_message,
    needs_of_message,
};
use super::wait_graph::{ClosedWait, describe_deadlock, find_deadlock};
use crate::api::observe::operation_details::CallSizes;
use crate::api::observe::recorder::short_group_id;
use crate::api::p2p::message_descriptor::MessageDescriptor;
use crate::base::dtype::DataType;
use crate::base::ids::Nonce;
use crate::base::label::Label;
use crate::transport::{
    CountSpec, Descriptor, MessageCounts, MessageTraffic, OpKind, UnmatchedMessage,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

fn wait_of(rank: usize, wait: u64) -> WaitId {
    WaitId { process: format!("host/{rank}"), wait }
}

/// Creates an edge from a wait to the waits with one number of several processes.
fn edge_to_any(from: usize, to: &[usize], wait: u64) -> WaitEdge {
    let targets = to.iter().map(|&to| wait_of(to, wait)).collect();
    WaitEdge { from, targets, group: 7, text: format!("rank {to:?}") }
}

fn edge(from: usize, to: usize, wait: u64) -> WaitEdge {
    edge_to_any(from, &[to], wait)
}

fn state(issued: u64) -> GroupSnapshot {
    let (sent, announced) = (vec![(0, Some(64)), (2, None)], vec![(0, 5)]);
    let counts = MessageCounts {
        sent: BTreeMap::from([((0, 3), 2)]),
        received: BTreeMap::from([((0, 3), 1), ((2, 9), 4)]),
        posted: BTreeSet::from([(None, Some(9)), (Some(2), None)]),
    };
    let awaited = Some(AwaitedRanks { number: 4, sequence: 2, ranks: vec![0, 3] });
    let device_counts = MessageCounts { sent: BTreeMap::from([((0, 0), 5)]), ..counts.clone() };
    let (counts, device_counts) = (Some(counts), Some(device_counts));
    GroupSnapshot {
        rank: 1,
        issued,
        is_idle: true,
        sent,
        announced,
        awaited,
        counts,
        device_counts,
    }
}

fn record() -> BlockedRecord {
    BlockedRecord {
        wait: 3,
        may_fail: true,
        joining: Some((8, "pair".to_owned())),
        groups: BTreeMap::from([(7, state(4)), (u64::MAX, state(0))]),
        branches: vec![vec![edge(1, 0, 2), edge_to_any(1, &[2, 3], u64::MAX)], vec![edge(1, 0, 3)]],
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
    let now = Instant::now();
    let caller = |group| CallerRank { group, rank: 0 };
    let unmet = |rank, call, group| RankNeed { rank, call }.is_unmet(caller(group), &record(), now);
    assert!(unmet(1, NeededCall::Collective(5), 7));
    assert!(!unmet(1, NeededCall::Collective(4), 7), "the rank has issued the call");
    assert!(!unmet(2, NeededCall::Collective(5), 7), "the record belongs to another rank");
    assert!(!unmet(1, NeededCall::Collective(5), 8), "the process is not in the group");
    assert!(unmet(1, NeededCall::Send { received: 64 }, 7));
    assert!(!unmet(1, NeededCall::Send { received: 63 }, 7), "a message may be on its way");
    assert!(unmet(1, NeededCall::Receive { number: 5 }, 7));
    assert!(!unmet(1, NeededCall::Receive { number: 6 }, 7), "a receive may have matched");
    let counted = |tag, received| {
        unmet(1, NeededCall::CountedSend { tag, received, memory: MessageMemory::Host }, 7)
    };
    assert!(counted(Some(3), 2) && counted(Some(4), 0) && counted(None, 2));
    assert!(!counted(Some(3), 1) && !counted(None, 1), "a message may be on its way");
    let memory = MessageMemory::Host;
    let receive = |tag, position| unmet(1, NeededCall::CountedReceive { tag, position, memory }, 7);
    assert!(receive(3, 2));
    assert!(!receive(3, 1), "a receive has matched");
    assert!(!receive(9, 1), "a receive may match");
    let joining =
        |received, name: &str| NeededCall::Joining { received, parent: 8, name: name.to_owned() };
    assert!(unmet(1, joining(64, "other"), 7), "the rank creates another group");
    assert!(!unmet(1, joining(64, "pair"), 7), "the rank creates the group");
    assert!(!unmet(1, joining(63, "other"), 7), "a message may be on its way");
    // Some messages to rank 2 are not in the stream yet, and nothing was sent to rank 3.
    assert!(!state(0).has_sent_at_most(2, u64::MAX) && state(0).has_sent_at_most(3, 0));
}

#[test]
fn participation_is_unmet_only_after_earlier_collectives() {
    let first_read = Instant::now();
    let later = first_read + Duration::from_millis(1);
    let unmet = |sequence, reported, is_idle| {
        let mut record = record();
        record.groups.insert(7, GroupSnapshot { is_idle, ..state(4) });
        RankNeed { rank: 1, call: NeededCall::Participation { sequence, reported } }.is_unmet(
            CallerRank { group: 7, rank: 0 },
            &record,
            first_read,
        )
    };
    assert!(unmet(5, later, true));
    assert!(!unmet(4, later, true), "the rank has issued the call");
    assert!(!unmet(5, later, false), "an earlier collective may end the wait");
    assert!(!unmet(5, first_read, true), "the report may be older than the end of the collective");
}

/// Returns the ranks whose calls a collective of rank 1 of 3 ranks needs.
fn needed_ranks(kind: OpKind, root: Option<usize>, outputs: &[u64]) -> Vec<usize> {
    let descriptor = Descriptor {
        kind,
        dtype: None,
        op: None,
        root,
        count_spec: CountSpec::Count(1),
        sequence: 4,
        algorithm: 0,
        part: 0,
        label: Label::NONE,
    };
    let outputs = Some(outputs.iter().map(|&count| vec![count]).collect());
    let sizes = CallSizes { inputs: None, outputs };
    let needs = needs_of_collective(&descriptor, &sizes, 1, 3);
    needs.iter().map(|need| need.alternatives[0].rank).collect()
}

#[test]
fn collectives_need_the_ranks_whose_data_they_get() {
    assert_eq!(needed_ranks(OpKind::AllReduce, None, &[5]), [0, 2]);
    assert_eq!(needed_ranks(OpKind::Scan, None, &[5]), [0]);
    assert_eq!(needed_ranks(OpKind::Broadcast, Some(2), &[5]), [2]);
    assert!(needed_ranks(OpKind::Broadcast, Some(1), &[5]).is_empty());
    assert_eq!(needed_ranks(OpKind::AllToAllV, None, &[5, 5, 0]), [0]);
    assert_eq!(needed_ranks(OpKind::AllGatherV, None, &[0, 0, 1]), [2]);
    assert_eq!(needed_ranks(OpKind::GatherV, Some(1), &[1, 1, 1]), [0, 2]);
    assert!(needed_ranks(OpKind::GatherV, Some(0), &[]).is_empty());
    assert_eq!(needed_ranks(OpKind::ScatterV, Some(0), &[3]), [0]);
    assert!(needed_ranks(OpKind::ScatterV, Some(0), &[0]).is_empty());
    assert_eq!(needed_ranks(OpKind::ReduceScatterV, None, &[2]), [0, 2]);
    assert!(needed_ranks(OpKind::ReduceScatterV, None, &[0]).is_empty());
}

#[test]
fn receive_from_any_rank_needs_one_of_the_present_ranks() {
    let mut traffic = MessageTraffic {
        received: vec![(0, 10), (2, 20), (3, 30)],
        departed: vec![3],
        unmatched: vec![UnmatchedMessage::Receive { from: None }],
        ..MessageTraffic::default()
    };
    let need = |rank, received| RankNeed { rank, call: NeededCall::Send { received } };
    let alternatives = vec![need(0, 10), need(2, 20)];
    assert_eq!(needs_of_message(&traffic, MessageMemory::Host, 1, 4), [Need { alternatives }]);
    traffic.received.remove(0);
    assert_eq!(
        needs_of_message(&traffic, MessageMemory::Host, 1, 4),
        [],
        "a message is partly received"
    );
}

#[test]
fn last_report_of_awaited_ranks_counts() {
    let group = Nonce([7; 16]);
    let report = || awaited_ranks(short_group_id(group), 1).map(|it| it.awaited);
    let awaited = || report().map(|it| (it.sequence, it.ranks));
    record_awaited_ranks(group, 1, 5, &[0, 2]);
    record_awaited_ranks(group, 2, 9, &[1]);
    assert_eq!(awaited(), Some((5, vec![0, 2])));
    let number = report().map(|it| it.number);
    record_awaited_ranks(group, 1, 5, &[0, 2]);
    assert_eq!(report().map(|it| it.number), number, "the wait is the same");
    record_awaited_ranks(group, 1, 6, &[2]);
    assert_eq!(awaited(), Some((6, vec![2])));
    assert_ne!(report().map(|it| it.number), number);
    record_awaited_ranks(group, 1, 6, &[]);
    assert_eq!(awaited(), None);
    record_awaited_ranks(group, 2, 9, &[]);
}

/// Searches for a deadlock with wait 1 of process 0. All waits of the other processes have the
/// number `wait`.
fn deadlock_of(edges: &[WaitEdge]) -> Option<Vec<ClosedWait>> {
    let mut by_rank: BTreeMap<usize, Vec<WaitBranch>> = BTreeMap::new();
    for edge in edges {
        by_rank.entry(edge.from).or_insert_with(|| vec![Vec::new()])[0].push(edge.clone());
    }
    deadlock_of_branches(&by_rank)
}

/// Searches for a deadlock with wait 1 of process 0. The argument has the branches of wait 1 of
/// each process.
fn deadlock_of_branches(by_rank: &BTreeMap<usize, Vec<WaitBranch>>) -> Option<Vec<ClosedWait>> {
    let by_wait: HashMap<WaitId, &Vec<WaitBranch>> =
        by_rank.iter().map(|(&rank, branches)| (wait_of(rank, 1), branches)).collect();
    find_deadlock(&wait_of(0, 1), by_rank.get(&0)?, |wait| by_wait.get(wait).copied().cloned())
}

fn ranks_of(waits: &[ClosedWait]) -> Vec<usize> {
    waits.iter().filter_map(ClosedWait::rank).collect()
}

#[test]
fn cycles_are_found_through_any_number_of_processes() {
    for size in 1..40 {
        let mut edges: Vec<WaitEdge> = (0..size).map(|at| edge(at, (at + 1) % size, 1)).collect();
        let mut cycle = deadlock_of(&edges).unwrap();
        let found: Vec<WaitEdge> = cycle.iter().flat_map(|wait| wait.edges.clone()).collect();
        assert_eq!(found, edges);
        // All processes of the cycle get the same text.
        let text = describe_deadlock(&cycle);
        assert!(text.starts_with("deadlock: rank 0 waits for rank"), "{text}");
        cycle.rotate_left(size / 2);
        assert_eq!(describe_deadlock(&cycle), text);
        assert_eq!(text.contains("more waits"), size > 16, "{text}");
        edges.pop();
        assert_eq!(deadlock_of(&edges), None);
    }
}

#[test]
fn cycles_need_the_present_waits() {
    assert_eq!(deadlock_of(&[edge(0, 1, 1), edge(1, 0, 2)]), None, "process 0 waits anew");
    assert_eq!(deadlock_of(&[edge(0, 1, 2), edge(1, 0, 1)]), None, "process 1 waits anew");
    // A cycle that does not contain process 0, and a way that branches.
    assert_eq!(deadlock_of(&[edge(0, 1, 1), edge(1, 2, 1), edge(2, 1, 1)]), None);
    let branches = [edge(0, 1, 1), edge(1, 2, 1), edge(2, 3, 1), edge(1, 4, 1), edge(4, 0, 1)];
    assert_eq!(ranks_of(&deadlock_of(&branches).unwrap()), [0, 1, 4]);
    // Of two ways back, the shorter one is reported.
    let ways = [edge(0, 1, 1), edge(1, 2, 1), edge(2, 0, 1), edge(1, 0, 1)];
    assert_eq!(ranks_of(&deadlock_of(&ways).unwrap()), [0, 1]);
}

#[test]
fn wait_for_any_rank_needs_all_ranks_in_the_deadlock() {
    let any = edge_to_any(0, &[1, 2], 1);
    assert_eq!(deadlock_of(&[any.clone(), edge(1, 0, 1)]), None, "rank 2 is not blocked");
    let both = [any.clone(), edge(1, 0, 1), edge(2, 1, 1)];
    let waits = deadlock_of(&both).unwrap();
    assert_eq!(ranks_of(&waits), [0, 1, 2]);
    assert!(
        describe_deadlock(&waits).starts_with("deadlock: rank 0 waits for rank [1, 2]; rank 1")
    );
    // Rank 2 waits for rank 3, which is not blocked.
    assert_eq!(deadlock_of(&[any.clone(), edge(1, 0, 1), edge(2, 3, 1)]), None);
    // Another need of rank 0 leads into a cycle.
    assert_eq!(ranks_of(&deadlock_of(&[any, edge(0, 1, 1), edge(1, 0, 1)]).unwrap()), [0, 1]);
}

#[test]
fn wait_for_any_work_needs_all_works_in_the_deadlock() {
    let any = |branches: Vec<WaitBranch>, others: &[WaitEdge]| {
        let mut by_rank = BTreeMap::from([(0, branches)]);
        by_rank.extend(others.iter().map(|edge| (edge.from, vec![vec![edge.clone()]])));
        deadlock_of_branches(&by_rank)
    };
    let two_works = vec![vec![edge(0, 1, 1)], vec![edge(0, 2, 1)]];
    assert_eq!(any(two_works.clone(), &[edge(1, 0, 1)]), None, "rank 2 is not blocked");
    let not_back = [edge(1, 0, 1), edge(2, 3, 1)];
    assert_eq!(any(two_works.clone(), &not_back), None, "rank 2 waits for a rank that is not");
    let waits = any(two_works, &[edge(1, 0, 1), edge(2, 1, 1)]).unwrap();
    assert_eq!(ranks_of(&waits), [0, 1, 2]);
    assert_eq!(
        describe_deadlock(&waits),
        "deadlock: rank 0 waits for rank [1] or for rank [2]; rank 1 waits for rank [0]; \
         rank 2 waits for rank [1]"
    );
    // A work needs all its calls, so one of them in the deadlock is enough.
    let batch = vec![vec![edge(0, 1, 1), edge(0, 3, 1)]];
    assert_eq!(ranks_of(&any(batch, &[edge(1, 0, 1)]).unwrap()), [0, 1]);
    assert_eq!(any(vec![vec![edge(0, 1, 1)], Vec::new()], &[edge(1, 0, 1)]), None);
}

#[test]
fn needs_of_counted_messages_have_tags_and_positions() {
    let counts = MessageCounts {
        sent: BTreeMap::from([((1, 3), 1)]),
        received: BTreeMap::from([((0, 3), 2), ((2, 4), 7)]),
        ..MessageCounts::default()
    };
    let memory = MessageMemory::Device;
    let needs = |unmatched| {
        let (counts, unmatched) = (Some(counts.clone()), vec![unmatched]);
        let traffic = MessageTraffic { counts, unmatched, ..MessageTraffic::default() };
        needs_of_message(&traffic, memory, 1, 3)
    };
    let receive = |from, tag| needs(UnmatchedMessage::CountedReceive { from, tag });
    let send = |rank, tag, received| RankNeed {
        rank,
        call: NeededCall::CountedSend { tag, received, memory },
    };
    assert_eq!(receive(Some(0), Some(3)), [send(0, Some(3), 2).into()]);
    assert_eq!(receive(Some(2), None), [send(2, None, 7).into()]);
    assert_eq!(receive(Some(1), Some(4)), [send(1, Some(4), 0).into()]);
    let alternatives = vec![send(0, Some(4), 0), send(2, Some(4), 7)];
    assert_eq!(receive(None, Some(4)), [Need { alternatives }]);
    assert_eq!(receive(None, Some(3)), [], "this rank has sent a message to itself");
    assert_eq!(receive(Some(1), None), [], "this rank has sent a message to itself");
    let (to, tag, position) = (2, 3, 5);
    let call = NeededCall::CountedReceive { tag, position, memory };
    assert_eq!(
        needs(UnmatchedMessage::CountedSend { to, tag, position }),
        [RankNeed { rank: to, call }.into()]
    );
}

#[test]
fn counts_of_host_and_device_are_separate() {
    let unmet = |received, memory| {
        let call = NeededCall::CountedSend { tag: None, received, memory };
        let caller = CallerRank { group: 7, rank: 0 };
        RankNeed { rank: 1, call }.is_unmet(caller, &record(), Instant::now())
    };
    assert!(unmet(2, MessageMemory::Host) && !unmet(4, MessageMemory::Device));
    assert!(unmet(5, MessageMemory::Device) && !unmet(1, MessageMemory::Host));
}

#[test]
fn enqueued_message_needs_the_call_at_its_position() {
    let (memory, label) = (MessageMemory::Device, Label::NONE);
    let counts = MessageCounts { sent: BTreeMap::from([((1, 0), 1)]), ..MessageCounts::default() };
    let needs = |message: &MessageDescriptor, position| {
        needs_of_enqueued_message(message, position, &counts, 1)
    };
    let receive = |from| MessageDescriptor::incoming(Some(from), Some(0), DataType::U8, 8, label);
    let send = |bytes| MessageDescriptor::outgoing(2, 0, DataType::U8, bytes, label);
    let call = NeededCall::CountedSend { tag: Some(0), received: 2, memory };
    let any_tag = MessageDescriptor { tag: None, ..receive(2) };
    assert_eq!(needs(&receive(2), 3), needs(&any_tag, 3));
    assert_eq!(needs(&receive(2), 3), Some(RankNeed { rank: 2, call }.into()));
    assert_eq!(needs(&receive(2), 0), None, "the position is unknown");
    assert_eq!(needs(&receive(1), 1), None, "this rank has sent the message to itself");
    assert!(needs(&receive(1), 2).is_some());
    let call = NeededCall::CountedReceive { tag: 0, position: 3, memory };
    assert_eq!(needs(&send((256 << 20) + 1), 3), Some(RankNeed { rank: 2, call }.into()));
    assert_eq!(needs(&send(256 << 20), 3), None, "the buffers may have the message");
}
