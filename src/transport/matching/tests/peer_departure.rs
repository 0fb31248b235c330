//! Ranks that leave while messages are in transit.

use super::test_ranks::{
    NodeSpread, TEST_TIMEOUT_MS, TestCompletion, create_ranks, receive_request, send_request,
    test_payload,
};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind};
use std::sync::Arc;

#[test]
fn messages_of_a_departed_rank_still_arrive() {
    const MESSAGES: u64 = 40;
    let mut members = create_ranks(NodeSpread::NodePerRank, 2);
    let departing = members.remove(1);
    let me = &members[0];
    let (first, answer) =
        (Arc::new(TestCompletion::default()), Arc::new(TestCompletion::default()));
    // The rank sends and leaves before any thread polls.
    me.engine.core().unwrap().with_state(|state| {
        for round in 0..MESSAGES {
            departing.send(0, 1, test_payload(round, 1000)).unwrap();
        }
        drop(departing);
        state.send(send_request(1, 2, vec![1]), answer.clone()).unwrap();
        state.receive(receive_request(Some(1), Some(1), 1000), first.clone()).unwrap();
    });
    first.wait().unwrap();
    for round in 1..MESSAGES {
        assert_eq!(me.receive(1, 1, 1000).unwrap(), test_payload(round, 1000));
    }
    let (kind, text) = answer.error();
    assert!(kind == ErrorKind::PeerFailed && text.contains("has left"), "{text}");
    assert_eq!(me.receive(1, 1, 1000).unwrap_err().kind(), ErrorKind::PeerFailed);
    assert!(me.domain.failure().is_none());
}

#[test]
fn failure_reason_may_arrive_after_a_departure() {
    for is_sent_to in [false, true] {
        let mut members = create_ranks(NodeSpread::NodePerRank, 3);
        let departing = members.remove(1);
        let me = &members[0];
        let posted = [Arc::new(TestCompletion::default()), Arc::new(TestCompletion::default())];
        me.engine.core().unwrap().with_state(|state| {
            state.receive(receive_request(Some(1), Some(1), 8), posted[0].clone()).unwrap();
            state.send(send_request(1, 1, test_payload(1, 150_000)), posted[1].clone()).unwrap();
            drop(departing);
            if is_sent_to {
                let refused = Arc::new(TestCompletion::default());
                state.send(send_request(1, 1, vec![1]), refused.clone()).unwrap();
                assert!(refused.get().is_none());
            }
            state.progress();
            me.domain.fail(&Error::new(ErrorKind::Aborted, "aborted by the test"));
            state.progress();
        });
        for outcome in posted {
            assert_eq!(outcome.error(), (ErrorKind::Aborted, "aborted by the test".to_owned()));
        }
    }
}

#[test]
fn any_source_receive_survives_a_departed_sender() {
    let mut members = create_ranks(NodeSpread::NodePerRank, 3);
    let departing = members.remove(1);
    let me = &members[0];
    let (any, bound) = (Arc::new(TestCompletion::default()), Arc::new(TestCompletion::default()));
    me.engine.core().unwrap().with_state(|state| {
        let offered =
            [1, 2].map(|tag| departing.post_send(send_request(0, tag, test_payload(1, 150_000))));
        state.drain_stream(1);
        state.receive(receive_request(None, Some(1), 150_000), any.clone()).unwrap();
        state.receive(receive_request(Some(1), Some(2), 150_000), bound.clone()).unwrap();
        drop(departing);
        offered.iter().for_each(|it| assert_eq!(it.error().0, ErrorKind::Aborted));
    });
    assert_eq!(bound.error().0, ErrorKind::PeerFailed);
    assert!(any.get().is_none());
    let sent = members[1].post_send(send_request(0, 1, test_payload(2, 140_000)));
    let delivery = any.wait().unwrap();
    assert_eq!((delivery.peer, delivery.bytes), (2, 140_000));
    sent.wait().unwrap();
}

#[test]
fn unreachable_peer_fails_the_group() {
    let members = create_ranks(NodeSpread::NodePerRank, 3);
    let me = &members[0];
    let waiting = Arc::new(TestCompletion::default());
    let refused = me.engine.core().unwrap().with_state(|state| {
        state.receive(receive_request(Some(2), Some(1), 8), waiting.clone()).unwrap();
        let error = Error::new(ErrorKind::Connection, "unreachable").with_culprit(1);
        state.on_send_error(1, error);
        state.send(send_request(1, 5, vec![1]), Arc::new(TestCompletion::default())).unwrap_err()
    });
    for (kind, text) in [waiting.error(), (refused.kind(), refused.message().to_owned())] {
        assert!(kind == ErrorKind::Connection && text.ends_with("unreachable"), "{text}");
    }
    // The unreachable rank notices the failure, too.
    let limit = Deadline::after_ms(TEST_TIMEOUT_MS);
    let error = loop {
        assert!(!limit.has_passed(), "no handler is notified");
        match members[1].domain.failure() {
            Some(error) => break error,
            None => std::thread::yield_now(),
        }
    };
    assert!(error.kind() == ErrorKind::Connection && error.culprit() == Some(1), "{error}");
}
