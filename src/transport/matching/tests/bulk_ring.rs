//! Long messages in bulk rings (rings for the bodies of long frames). A bulk ring serves one
//! receiver at a time. No receiver blocks another, and no receiver waits for a sender that does
//! nothing.

use super::test_ranks::{
    NodeSpread, TestCompletion, TestRank, borrowed_buffer, create_ranks, progress_until,
    read_bytes, receive_request, send_request, stop_service, test_payload, with_state,
};
use crate::base::ids::Rank;
use crate::transport::matching::gets::CmaAccess;
use crate::transport::matching::state::MatchingState;
use crate::transport::{Delivery, ImmediateMessage, PointToPoint as _, ReceiveRequest};
use std::sync::Arc;
use std::time::Duration;

const LONG: usize = 700_001;

fn deny_cma(member: &TestRank, from: Rank) {
    with_state(member, |state| state.gets.deny_access(from));
}

#[test]
fn stalled_receiver_does_not_block_other_receivers() {
    let members = create_ranks(NodeSpread::OneNode, 3);
    [1, 2].iter().for_each(|&rank: &Rank| deny_cma(&members[rank], 0));
    let stuck = receive_request(Some(0), Some(1), LONG);
    let sent = members[0].post_send(send_request(1, 1, test_payload(1, LONG)));
    // Rank 1 requests its message and then stops.
    let got = Arc::new(TestCompletion::default());
    let mut stopped_rank = members[1].engine.core().unwrap().lock();
    stopped_rank.state.receive(stuck, got.clone()).unwrap();
    stopped_rank.state.progress();
    progress_until(&[&members[0]], || {
        with_state(&members[0], |state| state.peers.bulk_ring_peer()) == Some(1)
    });
    let other = receive_request(Some(0), Some(1), LONG);
    let (sent_too, got_too) = (
        members[0].post_send(send_request(2, 1, test_payload(2, LONG))),
        members[2].post_receive(other),
    );
    progress_until(&[&members[0], &members[2]], || got_too.get().is_some());
    assert_eq!(read_bytes(borrowed_buffer(&other)), test_payload(2, LONG));
    assert!(got.get().is_none() && sent.get().is_none());
    drop(stopped_rank);
    assert_eq!(got.wait().unwrap().bytes, LONG);
    assert_eq!(read_bytes(borrowed_buffer(&stuck)), test_payload(1, LONG));
    [sent, sent_too].iter().for_each(|sent| assert!(sent.wait().is_ok()));
    // The bulk ring is free again.
    let again = receive_request(Some(0), Some(1), LONG);
    let (sent, got) = (
        members[0].post_send(send_request(2, 1, test_payload(3, LONG))),
        members[2].post_receive(again),
    );
    progress_until(&[&members[0], &members[2]], || got.get().is_some());
    sent.wait().unwrap();
    assert_eq!(with_state(&members[0], |state| state.peers.bulk_ring_peer()), Some(2));
}

/// Posts a send and a receive, both with a waiting caller. Returns whether the receiver may read
/// the sender's memory by CMA.
fn post_rts_and_receive(
    members: &[TestRank],
    message: ReceiveRequest,
    answer_timeout: Duration,
) -> (Arc<TestCompletion>, Arc<TestCompletion>, bool) {
    members.iter().for_each(stop_service);
    with_state(&members[1], |state| {
        state.gets.set_answer_timeout(answer_timeout);
        state.puts.set_can_write(false);
    });
    let sent = members[0].post_awaited_send(send_request(1, 1, test_payload(1, LONG)));
    let got = members[1].post_awaited_receive(message);
    let may_read = with_state(&members[1], |state| {
        state.progress();
        state.gets.access(0) == CmaAccess::Allowed
    });
    (sent, got, may_read)
}

#[test]
fn waiting_sender_gets_cts_and_sends_fragments() {
    let members = create_ranks(NodeSpread::OneSegment, 2);
    let message = receive_request(Some(0), Some(1), LONG);
    let (sent, got, may_read) = post_rts_and_receive(&members, message, Duration::from_mins(1));
    assert_eq!(with_state(&members[1], |state| state.gets.counts()[1]), usize::from(may_read));
    progress_until(&[&members[0], &members[1]], || sent.get().is_some() && got.get().is_some());
    sent.wait().unwrap();
    assert_eq!(read_bytes(borrowed_buffer(&message)), test_payload(1, LONG));
    assert_eq!(with_state(&members[0], |state| state.peers.bulk_ring_peer()), Some(1));
    assert_eq!(with_state(&members[1], |state| state.gets.counts()[1]), 0);
}

#[test]
fn buffer_of_a_silent_sender_is_read_by_cma() {
    let members = create_ranks(NodeSpread::OneSegment, 2);
    let message = receive_request(Some(0), Some(1), LONG);
    let (sent, got, may_read) = post_rts_and_receive(&members, message, Duration::ZERO);
    if may_read {
        // The sender does nothing at all.
        let stopped_rank = members[0].engine.core().unwrap().lock();
        progress_until(&[&members[1]], || got.get().is_some());
        assert_eq!(stopped_rank.state.peers.bulk_ring_peer(), None);
    }
    // The CTS arrives too late; the FIN follows it.
    progress_until(&[&members[0], &members[1]], || sent.get().is_some() && got.get().is_some());
    assert_eq!(sent.wait().unwrap(), Delivery { peer: 1, tag: 1, bytes: LONG });
    assert_eq!(read_bytes(borrowed_buffer(&message)), test_payload(1, LONG));
    assert!(members[1].domain.failure().is_none());
}

#[test]
fn sender_that_already_sends_is_not_read_by_cma() {
    let members = create_ranks(NodeSpread::OneSegment, 2);
    let message = receive_request(Some(0), Some(1), LONG);
    let (sent, got, _) = post_rts_and_receive(&members, message, Duration::from_millis(1));
    // The sender has withdrawn its buffer and begun to send. During that time, the receiver's
    // answer timeout passes.
    let stopped_rank = members[1].engine.core().unwrap().lock();
    with_state(&members[0], MatchingState::progress);
    std::thread::sleep(Duration::from_millis(2));
    drop(stopped_rank);
    progress_until(&[&members[0], &members[1]], || sent.get().is_some() && got.get().is_some());
    sent.wait().unwrap();
    assert_eq!(read_bytes(borrowed_buffer(&message)), test_payload(1, LONG));
    assert!(members[1].domain.failure().is_none());
}

/// Returns whether a message with tag 1 was sent without being posted.
fn try_send_immediate(from: &TestRank, to: Rank, body: Vec<u8>) -> bool {
    let message = send_request(to, 1, body);
    let (tag, dtype, bytes) = (Some(message.tag), message.dtype, message.bytes);
    from.engine.try_send_immediate(&ImmediateMessage { peer: Some(to), tag, dtype, bytes })
}

#[test]
fn eager_message_uses_the_bulk_ring_if_rings_are_small() {
    let members = create_ranks(NodeSpread::OneNode, 8);
    let len = 100_000;
    let at_once = |to, seed| try_send_immediate(&members[1], to, test_payload(seed, len));
    // The bulk ring holds two messages, and serves no other peer until the receiver has taken them.
    let stopped_rank = members[0].engine.core().unwrap().lock();
    assert!(at_once(0, 1) && at_once(0, 2));
    assert!(!at_once(0, 3) && !at_once(2, 4));
    drop(stopped_rank);
    let third = members[1].post_send(send_request(0, 1, test_payload(3, len)));
    let other = members[1].post_send(send_request(2, 1, test_payload(4, len)));
    for seed in 1..=3 {
        assert_eq!(members[0].receive(1, 1, len).unwrap(), test_payload(seed, len));
    }
    assert_eq!(members[2].receive(1, 1, len).unwrap(), test_payload(4, len));
    [third, other].iter().for_each(|sent| assert!(sent.wait().is_ok()));
    progress_until(&[&members[2]], || at_once(2, 5));
    assert_eq!(members[2].receive(1, 1, len).unwrap(), test_payload(5, len));
}

#[test]
fn short_message_uses_the_ring_while_bulk_ring_is_busy() {
    let members = create_ranks(NodeSpread::OneNode, 8);
    let len = 5_000;
    let at_once = |to, seed| try_send_immediate(&members[1], to, test_payload(seed, len));
    let lane_user = || with_state(&members[1], |state| state.peers.bulk_ring_peer());
    // The receiver reads nothing during that time.
    let stopped_rank = members[0].engine.core().unwrap().lock();
    assert!(at_once(0, 1) && at_once(2, 2) && at_once(0, 3) && at_once(3, 4));
    assert_eq!(lane_user(), Some(0));
    drop(stopped_rank);
    for (to, seed) in [(3, 4), (2, 2), (0, 1), (0, 3)] {
        assert_eq!(members[to].receive(1, 1, len).unwrap(), test_payload(seed, len));
    }
    assert!(at_once(2, 5));
    assert_eq!(lane_user(), Some(2));
    assert_eq!(members[2].receive(1, 1, len).unwrap(), test_payload(5, len));
}

#[test]
fn sleeping_receiver_is_woken_for_header_and_bulk_body() {
    let members = create_ranks(NodeSpread::OneNode, 8);
    // Rank 0 has gone to sleep; neither its threads nor the service thread poll.
    let stopped_rank = members[0].engine.core().unwrap().lock();
    let doorbell = members[0].domain.region().message_doorbell(0);
    doorbell.prepare_to_sleep();
    let before = doorbell.notify_count();
    assert!(try_send_immediate(&members[1], 0, test_payload(1, 100_000)));
    assert_eq!(doorbell.notify_count() - before, 2);
    doorbell.finish_sleep();
    drop(stopped_rank);
    assert_eq!(members[0].receive(1, 1, 100_000).unwrap(), test_payload(1, 100_000));
}
