//! Probes, matched messages, and synchronous sends.

use super::test_ranks::{
    NODE_SPREADS, NodeSpread, TEST_TIMEOUT_MS, TestRank, allocating_receive, borrowed_buffer,
    create_ranks, progress_until, read_bytes, receive_request, run_each_rank, send_request,
    stop_service, test_payload, with_state,
};
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::transport::{PointToPoint, ProbeRequest, ProbedMessage, ReceiveRequest, SendRequest};
use std::sync::Arc;
use std::time::Duration;

/// Message sizes on both sides of the eager limit.
const SIZES: [usize; 3] = [0, 100, 300_000];

fn request(from: Option<Rank>, tag: Option<u32>) -> ProbeRequest {
    ProbeRequest { from, tag, is_matched_probe: true }
}

impl TestRank {
    /// Waits for a message and removes it from matching.
    fn probe(&self, from: Option<Rank>, tag: Option<u32>) -> Result<ProbedMessage> {
        let limit = Deadline::after_ms(TEST_TIMEOUT_MS);
        Ok(self.engine.probe(&request(from, tag), &limit)?.expect("a message"))
    }

    /// Probes once, without waiting.
    fn probe_once(&self, from: Option<Rank>, tag: Option<u32>) -> Result<Option<ProbedMessage>> {
        let query = ProbeRequest { is_matched_probe: false, ..request(from, tag) };
        self.engine.probe(&query, &Deadline::after_ms(0))
    }

    fn receive_probed(&self, probed: ProbedMessage) -> Result<Vec<u8>> {
        let ProbedMessage { envelope, match_id: matched } = probed;
        let message = receive_request(Some(envelope.from), Some(envelope.tag), envelope.bytes);
        let outcome = Arc::new(super::test_ranks::TestCompletion::default());
        self.engine.receive_matched(matched.unwrap(), message, outcome.clone())?;
        self.wait_with_progress(&outcome)?;
        Ok(read_bytes(borrowed_buffer(&message)))
    }

    fn buffered(&self) -> usize {
        with_state(self, |state| state.buffered_bytes())
    }
}

fn synchronous(message: SendRequest) -> SendRequest {
    SendRequest { is_synchronous: true, ..message }
}

#[test]
fn a_probed_message_is_out_of_matching() {
    for (spread, len) in NODE_SPREADS.into_iter().flat_map(|spread| SIZES.map(|len| (spread, len)))
    {
        let members = create_ranks(spread, 2);
        // Two messages of each size: the probe takes the first.
        let sent =
            [1, 2].map(|seed| members[0].post_send(send_request(1, 7, test_payload(seed, len))));
        let probed = members[1].probe(Some(0), Some(7)).unwrap();
        let envelope = probed.envelope;
        assert_eq!((envelope.from, envelope.tag, envelope.bytes), (0, 7, len));
        assert_eq!(envelope.dtype, DataType::U8);
        assert_eq!(
            members[1].receive(0, 7, len).unwrap(),
            test_payload(2, len),
            "{spread:?}, {len}"
        );
        assert_eq!(members[1].probe_once(None, None), Ok(None), "{spread:?}, {len}");
        assert_eq!(members[1].receive_probed(probed).unwrap(), test_payload(1, len));
        sent.iter().for_each(|sent| assert_eq!(sent.wait().unwrap().tag, 7));
        assert_eq!(members[1].buffered(), 0);
    }
}

#[test]
fn plain_probe_leaves_the_message_in_matching() {
    for spread in NODE_SPREADS {
        let members = create_ranks(spread, 2);
        let query = ProbeRequest { is_matched_probe: false, ..request(None, None) };
        let sent = members[0].post_send(send_request(1, 3, test_payload(5, 40)));
        let limit = Deadline::after_ms(TEST_TIMEOUT_MS);
        for _ in 0..2 {
            let found = members[1].engine.probe(&query, &limit).unwrap().unwrap();
            assert_eq!((found.envelope.tag, found.match_id), (3, None));
        }
        assert_eq!(members[1].receive(0, 3, 40).unwrap(), test_payload(5, 40));
        sent.wait().unwrap();
    }
}

#[test]
fn a_released_message_keeps_its_place() {
    for (spread, len) in NODE_SPREADS.into_iter().flat_map(|spread| SIZES.map(|len| (spread, len)))
    {
        let members = create_ranks(spread, 2);
        let _sent =
            [1, 2, 3].map(|seed| members[0].post_send(send_request(1, 7, test_payload(seed, len))));
        let first = members[1].probe(Some(0), Some(7)).unwrap();
        let second = members[1].probe(None, Some(7)).unwrap();
        members[1].engine.release_matched(second.match_id.unwrap());
        members[1].engine.release_matched(first.match_id.unwrap());
        // A second release has no effect.
        members[1].engine.release_matched(first.match_id.unwrap());
        for seed in [1, 2, 3] {
            assert_eq!(
                members[1].receive(0, 7, len).unwrap(),
                test_payload(seed, len),
                "{spread:?}"
            );
        }
    }
}

#[test]
fn a_released_message_goes_to_a_posted_receive() {
    let members = create_ranks(NodeSpread::OneNode, 2);
    let _sent = members[0].post_send(send_request(1, 7, test_payload(1, 50)));
    let probed = members[1].probe(Some(0), None).unwrap();
    let message = receive_request(None, Some(7), 50);
    let received = members[1].post_receive(message);
    assert!(received.get().is_none());
    members[1].engine.release_matched(probed.match_id.unwrap());
    received.wait().unwrap();
    assert_eq!(read_bytes(borrowed_buffer(&message)), test_payload(1, 50));
}

#[test]
fn probe_waits_for_a_message_or_its_deadline() {
    for spread in NODE_SPREADS {
        run_each_rank(create_ranks(spread, 2), |rank, member| {
            if rank == 0 {
                // The message is usually sent after the other rank has begun to wait.
                let soon = Deadline::after(Duration::from_millis(30));
                member.engine.progress_until(&|| false, &soon);
                member.send(1, 9, test_payload(4, 64)).unwrap();
                assert_eq!(member.receive(1, 0, 1).unwrap(), [1]);
                return;
            }
            let limit = Deadline::after_ms(5);
            assert_eq!(member.engine.probe(&request(Some(0), Some(8)), &limit), Ok(None));
            assert!(limit.has_passed());
            let probed = member.probe(Some(0), Some(9)).unwrap();
            assert_eq!(member.receive_probed(probed).unwrap(), test_payload(4, 64));
            member.send(0, 0, vec![1]).unwrap();
        });
    }
}

#[test]
fn a_probe_wakes_for_a_message_to_self() {
    for len in SIZES {
        let members = create_ranks(NodeSpread::OneNode, 1);
        let member = &members[0];
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new();
            let waits = thread.spawn_scoped(scope, || member.probe(None, Some(2)).unwrap());
            let waits = waits.unwrap();
            while with_state(member, |state| state.queues.probe_counts().0) == 0 {
                std::thread::yield_now();
            }
            // The pause is long enough for the probe to sleep.
            std::thread::park_timeout(Duration::from_millis(20));
            let sent = member.post_send(send_request(0, 2, test_payload(6, len)));
            let probed = waits.join().unwrap();
            assert_eq!(member.receive_probed(probed).unwrap(), test_payload(6, len));
            sent.wait().unwrap();
        });
    }
}

#[test]
fn a_probe_ends_when_its_sender_leaves() {
    for spread in NODE_SPREADS {
        let mut members = create_ranks(spread, 2);
        let departing = members.remove(0);
        departing.send(1, 1, test_payload(1, 10)).unwrap();
        drop(departing);
        // A message that the rank sent before it left is found.
        let probed = members[0].probe(Some(0), None).unwrap();
        let error = members[0].probe(Some(0), None).unwrap_err();
        assert_eq!((error.kind(), error.culprit()), (ErrorKind::PeerFailed, Some(0)));
        assert_eq!(members[0].receive_probed(probed).unwrap(), test_payload(1, 10));
    }
}

#[test]
fn an_offered_message_ends_with_its_sender() {
    for spread in NODE_SPREADS {
        let mut members = create_ranks(spread, 2);
        let departing = members.remove(0);
        let _sent = departing.post_send(send_request(1, 1, test_payload(1, 300_000)));
        let probed = members[0].probe(None, None).unwrap();
        drop(departing);
        let error = members[0].receive_probed(probed).unwrap_err();
        // A sender that leaves first cancels its messages. The receiver may see that before the end
        // of the stream.
        let kinds = [ErrorKind::PeerFailed, ErrorKind::Aborted];
        assert!(kinds.contains(&error.kind()) && error.culprit() == Some(0), "{error}");
        assert!(with_state(&members[0], |state| state.requests.is_empty()
            && state.queues.probe_counts().1 == 0));
        members[0].engine.release_matched(probed.match_id.unwrap());
    }
}

#[test]
fn a_withdrawn_message_ends_its_receive() {
    for spread in NODE_SPREADS {
        let members = create_ranks(spread, 2);
        let deadline = Deadline::after_ms(30);
        let sent = members[0]
            .post_send(SendRequest { deadline, ..send_request(1, 1, test_payload(1, 300_000)) });
        let probed = members[1].probe(None, None).unwrap();
        assert_eq!(sent.error().0, ErrorKind::Timeout);
        let error = members[1].receive_probed(probed).unwrap_err();
        assert_eq!((error.kind(), error.culprit()), (ErrorKind::Aborted, Some(0)), "{error}");
        assert!(error.message().contains("its sender cancelled it"), "{error}");
        // The receive does not take the next message instead.
        let _next = members[0].post_send(send_request(1, 1, test_payload(2, 10)));
        assert_eq!(members[1].receive(0, 1, 10).unwrap(), test_payload(2, 10));
    }
}

#[test]
fn a_late_receive_returns_the_message_to_matching() {
    let members = create_ranks(NodeSpread::NodePerRank, 2);
    let sent = members[0].post_send(send_request(1, 1, test_payload(1, 300_000)));
    let ProbedMessage { envelope, match_id: matched } = members[1].probe(None, None).unwrap();
    stop_service(&members[0]);
    let (from, tag) = (Some(envelope.from), Some(envelope.tag));
    let message = ReceiveRequest {
        deadline: Deadline::after_ms(20),
        ..receive_request(from, tag, envelope.bytes)
    };
    let outcome = Arc::new(super::test_ranks::TestCompletion::default());
    members[1].engine.receive_matched(matched.unwrap(), message, outcome.clone()).unwrap();
    assert_eq!(outcome.error().0, ErrorKind::Timeout);
    let again = receive_request(None, None, envelope.bytes);
    let received = members[1].post_receive(again);
    progress_until(&[&members[0], &members[1]], || received.get().is_some());
    assert_eq!(read_bytes(borrowed_buffer(&again)), test_payload(1, 300_000));
    progress_until(&[&members[0], &members[1]], || sent.get().is_some());
}

#[test]
fn failed_group_ends_probes_and_matched_messages() {
    for spread in NODE_SPREADS {
        run_each_rank(create_ranks(spread, 2), |rank, member| {
            if rank == 0 {
                let _sent = member.post_send(send_request(1, 1, test_payload(1, 300_000)));
                assert_eq!(member.receive(1, 0, 1).unwrap(), [1]);
                let reason = Error::new(ErrorKind::Aborted, "as requested");
                member.domain.fail(&reason);
                member.endpoint.iter().for_each(|endpoint| endpoint.fail(&reason));
                return;
            }
            let probed = member.probe(None, Some(1)).unwrap();
            member.send(0, 0, vec![1]).unwrap();
            let error = member.probe(None, Some(5)).unwrap_err();
            assert!(error.message().contains("as requested"), "{error}");
            let error = member.receive_probed(probed).unwrap_err();
            assert!(error.message().contains("as requested"), "{error}");
            member.engine.release_matched(probed.match_id.unwrap());
        });
    }
}

#[test]
fn bytes_held_for_probes_stay_bounded() {
    let members = create_ranks(NodeSpread::OneNode, 2);
    let len = 20_000;
    let count = 200;
    let sent: Vec<_> = (0..count)
        .map(|seed| members[0].post_send(send_request(1, 1, test_payload(seed, len))))
        .collect();
    let probed: Vec<_> = (0..count).map(|_| members[1].probe(Some(0), None).unwrap()).collect();
    let limit = with_state(&members[1], |state| state.peers.limits().held_bytes);
    assert!(members[1].buffered() > 0 && members[1].buffered() <= limit);
    for (seed, probed) in (0..count).zip(probed) {
        assert_eq!(members[1].receive_probed(probed).unwrap(), test_payload(seed, len));
    }
    sent.iter().for_each(|sent| assert_eq!(sent.wait().unwrap().bytes, len));
    assert_eq!(members[1].buffered(), 0);
}

#[test]
fn probe_creates_a_lazy_engine() {
    let members = create_ranks(NodeSpread::OneNode, 2);
    assert!(members[0].engine.existing_core().is_none());
    members[0].engine.release_matched(1);
    assert!(members[0].engine.existing_core().is_none());
    assert_eq!(members[0].probe_once(Some(1), Some(1)), Ok(None));
    assert!(members[0].engine.existing_core().is_some());
    let error = members[0].probe_once(Some(2), None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn a_synchronous_send_waits_for_its_receive() {
    for (spread, len) in NODE_SPREADS.into_iter().flat_map(|spread| SIZES.map(|len| (spread, len)))
    {
        let members = create_ranks(spread, 2);
        let plain = members[0].post_send(send_request(1, 1, test_payload(1, 100)));
        plain.wait().unwrap();
        let sent = members[0].post_send(synchronous(send_request(1, 2, test_payload(2, len))));
        // The receiver has probed the message, but has posted no receive.
        let probed = members[1].probe(Some(0), Some(2)).unwrap();
        assert!(sent.get().is_none(), "{spread:?}, {len}");
        assert_eq!(members[1].receive_probed(probed).unwrap(), test_payload(2, len));
        sent.wait().unwrap();
        assert_eq!(members[1].receive(0, 1, 100).unwrap(), test_payload(1, 100));
        // The same with a buffer that the engine allocates, and with a message to the rank itself.
        let sent = members[0].post_send(synchronous(send_request(1, 2, test_payload(3, len))));
        let grown = members[1].post_receive(allocating_receive(Some(0), None, len));
        grown.wait().unwrap();
        assert_eq!(grown.allocated_bytes(), test_payload(3, len));
        sent.wait().unwrap();
        let own = members[0].post_send(synchronous(send_request(0, 3, test_payload(4, len))));
        assert!(own.get().is_none());
        assert_eq!(members[0].receive(0, 3, len).unwrap(), test_payload(4, len));
        own.wait().unwrap();
    }
}

#[test]
fn unreceived_synchronous_send_times_out() {
    let members = create_ranks(NodeSpread::OneSegment, 2);
    let deadline = Deadline::after_ms(20);
    let late = SendRequest { deadline, ..synchronous(send_request(1, 2, test_payload(2, 4))) };
    let sent = members[0].post_send(late);
    assert_eq!(sent.error().0, ErrorKind::Timeout);
    let own = members[0].post_send(SendRequest { to: 0, deadline: Deadline::after_ms(20), ..late });
    let probed = members[0].probe(Some(0), Some(2)).unwrap();
    assert_eq!(own.error().0, ErrorKind::Timeout);
    let error = members[0].receive_probed(probed).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
}
