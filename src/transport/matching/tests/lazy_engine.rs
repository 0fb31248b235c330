//! Lazy engines: the first message creates an engine, and no other event does.

use super::test_ranks::{
    NodeSpread, TEST_TIMEOUT_MS, create_ranks, receive_request, send_request, test_payload,
};
use crate::base::deadline::Deadline;
use crate::base::error::ErrorKind;
use crate::transport::PointToPoint as _;
use crate::transport::matching::MatchingEngine;
use crate::wait::doorbell::Doorbell;
use crate::wait::{WaitPolicy, wait_until};
use std::time::Duration;

fn has_core(engine: &MatchingEngine) -> bool {
    engine.existing_core().is_some()
}

/// Waits until another thread has made a condition true.
fn wait_until_true(holds: impl Fn() -> bool) {
    let (unused_doorbell, deadline) = (Doorbell::default(), Deadline::after_ms(TEST_TIMEOUT_MS));
    while !holds() {
        let slice = deadline.capped(Duration::from_millis(1));
        drop(wait_until(&unused_doorbell, WaitPolicy::SLEEP_SOON, &slice, || None, || None::<()>));
        assert!(!deadline.has_passed(), "the wait timed out");
    }
}

#[test]
fn first_message_creates_engines_and_a_wakeup_does_not() {
    for spread in [NodeSpread::OneNode, NodeSpread::OneSegment] {
        let members = create_ranks(spread, 3);
        members[0].domain.notify_listeners(1);
        members[0].domain.wake_all();
        assert!(members.iter().all(|member| !has_core(&member.engine)), "{spread:?}");
        let sent = members[0].post_send(send_request(1, 5, test_payload(9, 100)));
        assert_eq!(sent.wait().unwrap().bytes, 100);
        // No call was made on rank 1.
        wait_until_true(|| has_core(&members[1].engine));
        assert!(!has_core(&members[2].engine));
        let got = members[1].post_receive(receive_request(Some(0), Some(5), 100));
        assert_eq!(got.wait().unwrap().peer, 0);
    }
}

#[test]
fn message_sent_before_departure_reaches_a_lazy_engine() {
    let mut members = create_ranks(NodeSpread::OneNode, 2);
    let (one, zero) = (members.pop().unwrap(), members.pop().unwrap());
    zero.post_send(send_request(1, 1, test_payload(3, 64))).wait().unwrap();
    drop(zero.engine);
    zero.domain.leave();
    assert_eq!(one.receive(0, 1, 64).unwrap(), test_payload(3, 64));
    wait_until_true(|| one.engine.departure_error(0).is_some());
    assert_eq!(one.engine.departure_error(0).unwrap().kind(), ErrorKind::PeerFailed);
}

#[test]
fn rank_that_left_without_a_message_has_departed() {
    let mut members = create_ranks(NodeSpread::OneSegment, 2);
    let (one, zero) = (members.pop().unwrap(), members.pop().unwrap());
    drop(zero);
    wait_until_true(|| one.engine.departure_error(0).is_some());
}
